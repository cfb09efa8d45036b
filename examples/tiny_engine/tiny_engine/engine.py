"""What the prefill and the decode engine share: agent, pool, session, routers, and one loop.

One thread computes and owns all state. The session's thread and the routers' threads only put what
comes into an inbox, which the loop empties between two pieces of work.
"""

from __future__ import annotations

import contextlib
import queue
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pageferry as pf

from tiny_engine.aux import AUX_BYTES
from tiny_engine.engine_parts import POOL_NAME, Asked, EngineOptions, make_profile
from tiny_engine.kv_cache import KvLayout, PagedKvCache
from tiny_engine.model import Model
from tiny_engine.model_file import progress
from tiny_engine.page_store import PageStore
from tiny_engine.pages import OutOfPagesError, PageAllocator
from tiny_engine.wire import LineServer, LineSocket, Message
from tiny_engine.work import BadWorkError, Work


class Engine(ABC):
    """One engine with its agent. Owns the client, the pool's mapping, the session and the server.

    All methods but `stop` are for the thread that calls `run`.
    """

    role: ClassVar[pf.Role]

    def __init__(self, model: Model, options: EngineOptions) -> None:
        """Connects and registers; returns when rooms can be opened. Raises PageferryError."""
        self.model = model
        self.options = options
        config = model.config
        self.layout = KvLayout(
            config.layers, options.num_pages, config.kv_heads, config.head_dim, dtype="float16"
        )
        # Pages are handed out in a scattered order, as in an engine that has run for long.
        seed = int(self.role)
        self.pages = PageStore(options.num_pages, self.layout.page_tokens, shuffle_seed=seed)
        self.slots = PageAllocator(options.aux_slots, shuffle_seed=seed)
        self._waiting: deque[Asked] = deque()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._backpressure = False
        with contextlib.ExitStack() as undo:
            self.agent = pf.Agent.connect(
                options.agent, timeout=options.start_seconds, tls=options.tls
            )
            undo.callback(self.agent.close)
            aux_offset = self.layout.total_bytes
            size = aux_offset + options.aux_slots * AUX_BYTES
            pool = self.agent.create_pool(POOL_NAME, size)
            self.cache = PagedKvCache(pool.data, self.layout)
            self.aux: np.ndarray = pool.array(aux_offset, options.aux_slots * AUX_BYTES, np.uint8)
            info = self.agent.register_engine(
                options.engine_id,
                self.role,
                make_profile(self.layout, aux_offset, options.aux_slots),
                shape=pf.ParallelShape(dp=options.dp_size),
                coordinate=pf.RankCoordinate(dp=options.dp_rank),
                dp_by_directory=options.dp_by_directory,
                layer_count=config.layers,
                wait_ready=options.start_seconds,
            )
            self.session = self.agent.open_session(options.engine_id, on_event=self._on_event)
            greeting: Message = {
                "event": "hello",
                "engine": options.engine_id,
                "role": self.role.name.lower(),
                "dp_rank": options.dp_rank,
                "agent": info.agent_id,
                "shm": pool.shm_name,
                "pages": options.num_pages,
                "page_tokens": self.layout.page_tokens,
                "page_bytes": self.layout.item_bytes * len(self.layout.entries),
            }
            self._server = LineServer(
                options.listen, greeting, self._on_message, self._on_router_gone
            )
            undo.pop_all()

    # --- other threads: only put into the inbox ---

    def stop(self) -> None:
        """Makes `run` return soon. Thread-safe."""
        self._inbox.put(self._stop)

    def _on_event(self, event: pf.Event) -> None:
        self._inbox.put(lambda: self._take_event(event))

    def _on_message(self, router: LineSocket, message: Message) -> None:
        self._inbox.put(lambda: self._take_message(router, message))

    def _on_router_gone(self, router: LineSocket) -> None:
        self._inbox.put(lambda: self._drop_router(router))

    # --- the loop ---

    def run(self) -> None:
        """Works until `stop`."""
        while not self._stopping:
            self._admit()
            with contextlib.suppress(queue.Empty):
                self._inbox.get(block=not self.busy)()
                while not self._stopping:
                    self._inbox.get_nowait()()
            if self.busy and not self._stopping:
                self.work()

    def close(self) -> None:
        """Ends the server, the session (its rooms are aborted and drained) and the client."""
        self._server.close()
        self.agent.close()

    def _stop(self) -> None:
        self._stopping = True

    def _take_message(self, router: LineSocket, message: Message) -> None:
        operation = message.get("op")
        if operation == "start":
            self._take_work(router, message)
        elif operation == "abort":
            room = message.get("room")
            detail = f"router: {message.get('detail', 'aborted')}"
            self._drop(lambda asked: asked.work.room == room, detail)
        elif operation == "stats":
            router.send(
                {
                    "event": "stats",
                    "rooms": self.session.live_rooms,
                    "leased_pages": self.pages.leased_count,
                    "kept_pages": self.pages.kept_count,
                    "free_slots": self.slots.free_count,
                }
            )
        else:
            router.send({"event": "refused", "message": f"unknown operation {operation!r}"})

    def _take_work(self, router: LineSocket, message: Message) -> None:
        config = self.model.config
        longest = config.context_tokens - self.model.chunk_tokens
        try:
            work = Work.from_message(message, config.vocabulary, longest)
        except BadWorkError as error:
            why = {"code": "INVALID_ARGUMENT", "reason": "BAD_WORK", "message": str(error)}
            router.send({"event": "failed", "room": message.get("room"), **why})
            return
        asked = Asked(router, work)
        if (needed := self.pages_needed(work)) > self.pages.num_pages:
            text = f"{needed} pages needed, the whole pool has {self.pages.num_pages}"
            asked.tell_failed("RESOURCE_EXHAUSTED", "OUT_OF_PAGES", text)
            return
        self._waiting.append(asked)

    def _admit(self) -> None:
        """Begins waiting work, in order, as far as pages and slots reach."""
        while self._waiting and self.slots.free_count and not self._backpressure:
            asked = self._waiting[0]
            try:
                self.begin(asked)
            except OutOfPagesError:
                return
            except pf.PageferryError as error:
                asked.tell_error(error)
            self._waiting.popleft()

    def _take_event(self, event: pf.Event) -> None:
        if isinstance(event, pf.RoomUpdate):
            self.on_room(event)
        elif isinstance(event, pf.PrefixKnown):
            self.on_grant(event)
        elif isinstance(event, pf.Backpressure):
            self._backpressure = event.engaged
        elif isinstance(event, pf.RecomputeRequested):
            self.session.answer_recompute(
                event.room_id, attempt=event.attempt, accepted=False, detail="not in this example"
            )
        elif isinstance(event, pf.SessionClosed) and event.error is not None:
            progress(f"{self.options.engine_id} has lost its agent: {event.error}")

    def _drop_router(self, router: LineSocket) -> None:
        self._drop(lambda asked: asked.router is router, "the router has gone")

    def _drop(self, chosen: Callable[[Asked], bool], detail: str) -> None:
        for asked in [asked for asked in self._waiting if chosen(asked)]:
            asked.tell_failed("ABORTED", "ABORTED", detail)
            self._waiting.remove(asked)
        self.drop(chosen, detail)

    # --- what an engine does in its own way ---

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether `work` has something to do."""

    @abstractmethod
    def work(self) -> None:
        """Computes one piece: a chunk, or a step."""

    @abstractmethod
    def pages_needed(self, work: Work) -> int:
        """Pages that a request takes, with none of them known."""

    @abstractmethod
    def begin(self, asked: Asked) -> None:
        """Opens the room. Raises OutOfPagesError (nothing was taken) or PageferryError."""

    @abstractmethod
    def on_room(self, event: pf.RoomUpdate) -> None:
        """A room changed."""

    @abstractmethod
    def drop(self, chosen: Callable[[Asked], bool], detail: str) -> None:
        """Aborts the chosen rooms; their pages come back when they are drained."""

    def on_grant(self, event: pf.PrefixKnown) -> None:  # noqa: B027 - prefill only
        """The grant of a room has come."""
