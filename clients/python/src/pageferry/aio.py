"""The client for asyncio: the same rooms, pools and errors, with `await` where something waits.

It stands on the other API. The session's thread hands every event to the event loop; what may block
for a moment (a call, a full outbox) runs on a few threads of the agent's. All methods are for the
loop on which the agent was connected. A task that is cancelled while it waits loses nothing: the
room goes on, and its events stay with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

from pageferry import client, directory
from pageferry.errors import DeadlineExceeded, InvalidArgument
from pageferry.events import Event, PrefixKnown
from pageferry.info import AgentInfo, EngineInfo, RankInfo
from pageferry.pools import Pool
from pageferry.rooms import PageList, ReceiveRoom, Room, RoomResult, SendRoom
from pageferry.session import Session
from pageferry.tls import Tls
from pageferry.watch import EngineWatch, WatchEvent

T = TypeVar("T")
# Of one agent: calls that are under way at once; the next one waits for its turn.
_THREADS = 16


class _Threads:
    """Runs what may block, away from the loop."""

    def __init__(self, count: int = _THREADS) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="pageferry-aio")

    async def run(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*arguments, **named))

    async def make(
        self,
        function: Callable[..., T],
        unmake: Callable[[T], object],
        *arguments: Any,
        **named: Any,
    ) -> T:
        """As `run`, for what must not be left behind: where the task is cancelled meanwhile, what
        comes in the end is unmade.
        """
        made = self._pool.submit(lambda: function(*arguments, **named))
        try:
            return await asyncio.shield(asyncio.wrap_future(made))
        except asyncio.CancelledError:

            def unmake_it() -> None:
                with contextlib.suppress(Exception):
                    unmake(made.result())

            # On a thread of its own: the pool may be closed by then.
            threading.Thread(target=unmake_it, name="pageferry-unmake", daemon=True).start()
            raise

    def close(self) -> None:
        self._pool.shutdown(wait=False)


class AsyncRoom:
    """One room. `room` is the same one of the other API, for its state, pages, error and so on."""

    def __init__(self, session: AsyncSession, room: Room) -> None:
        """Made by `AsyncSession.open_send` and `AsyncSession.open_receive`."""
        self.room = room
        self._session = session
        self._changed = asyncio.Event()

    async def wait(self, timeout: float | None = None) -> RoomResult:
        """Waits for the end. Raises RoomFailed, or DeadlineExceeded after `timeout` seconds."""
        await self._until(lambda: self.room.done, timeout, "end")
        return self.room.wait(0)

    async def wait_drained(self, timeout: float | None = None) -> None:
        """Waits until the room's pages may be reused; DeadlineExceeded: they may not be yet."""
        await self._until(lambda: self.room.drained, timeout, "be drained")

    async def abort(self, detail: str = "") -> None:
        """Ends the room before success; `detail` goes to the other side."""
        await self._session.run(self.room.abort, detail)

    async def close(self) -> None:
        """Aborts the room if it still runs, else lets the agent forget it."""
        await self._session.run(self.room.close)

    def wake(self) -> None:
        """Something happened. On the loop."""
        self._changed.set()

    async def _until(self, ready: Callable[[], bool], timeout: float | None, what: str) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not ready():
                    self._changed.clear()
                    if not ready():
                        await self._changed.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"{self.room!r} did not {what} within {timeout} s") from None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the room, also where the task was cancelled."""
        await asyncio.shield(self.close())


class AsyncSendRoom(AsyncRoom):
    """Prefill: a room whose pages are sent from here."""

    room: SendRoom

    async def wait_granted(self, timeout: float | None = None) -> PrefixKnown:
        """Waits for the decode side's grant. Raises RoomFailed, or DeadlineExceeded."""
        room = self.room
        await self._until(lambda: room.grant is not None or room.done, timeout, "be granted")
        return room.wait_granted(0)

    async def send_chunk(self, pages: PageList, **more: Any) -> None:
        """As `SendRoom.send_chunk`: these pages may be read from now on, until drained."""
        await self._session.run(self.room.send_chunk, pages, **more)

    async def fail(self, detail: str) -> None:
        """Says that this engine cannot deliver the room."""
        await self._session.run(self.room.fail, detail)

    async def __aenter__(self) -> AsyncSendRoom:
        """Gives the room."""
        return self


class AsyncReceiveRoom(AsyncRoom):
    """Decode: a room whose pages are written here."""

    room: ReceiveRoom

    async def __aenter__(self) -> AsyncReceiveRoom:
        """Gives the room."""
        return self


class AsyncSession:
    """The session of an engine with its agent."""

    def __init__(self, threads: _Threads, events_at_most: int) -> None:
        """Made by `AsyncAgent.open_session`."""
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._events_at_most = events_at_most
        self._rooms: dict[Room, AsyncRoom] = {}
        self.session: Session

    async def run(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Runs what may block for a moment on a thread."""
        return await self._threads.run(function, *arguments, **named)

    async def open_send(self, room_id: int, **more: Any) -> AsyncSendRoom:
        """As `Session.open_send`."""
        room = await self._threads.make(self.session.open_send, Room.close, room_id, **more)
        return self._keep(AsyncSendRoom(self, room))

    async def open_receive(
        self, room_id: int, prefill_engine_id: str, pages: PageList, **more: Any
    ) -> AsyncReceiveRoom:
        """As `Session.open_receive`."""
        room = await self._threads.make(
            self.session.open_receive, Room.close, room_id, prefill_engine_id, pages, **more
        )
        return self._keep(AsyncReceiveRoom(self, room))

    R = TypeVar("R", bound=AsyncRoom)

    def _keep(self, room: R) -> R:
        # Events that came before are in the room's state; a room that is over needs no more.
        if not room.room.drained:
            self._rooms[room.room] = room
        return room

    async def events(self) -> AsyncIterator[Event]:
        """All events, to the end of the session; for one opened with `events=True`."""
        if not self._events_at_most:
            raise InvalidArgument("events needs open_session(..., events=True)")
        while (event := await self._events.get()) is not None:
            yield event
        self._events.put_nowait(None)  # for whoever asks again

    async def close(self) -> None:
        """Ends the session: the agent aborts and drains its rooms."""
        await self.run(self.session.close)

    def take(self, event: Event) -> None:
        """An event has come. On the session's thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, event)

    def _deliver(self, event: Event) -> None:
        if self._events_at_most:
            self._events.put_nowait(event)
            if self._events.qsize() == self._events_at_most:
                # Nobody reads them. As with the other API, that ends the session.
                threading.Thread(target=self.session.close, daemon=True).start()
            if type(event).__name__ == "SessionClosed":
                self._events.put_nowait(None)
        room = getattr(event, "room", None)
        known = self._rooms.get(room) if isinstance(room, Room) else None
        if known is not None:
            known.wake()
            if known.room.drained:
                del self._rooms[known.room]

    async def __aenter__(self) -> AsyncSession:
        """Gives the session."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the session."""
        await asyncio.shield(self.close())


class AsyncAgent:
    """Speaks to the agent of one rank. `agent` is the client of the other API below it."""

    def __init__(self, agent: client.Agent, threads: _Threads) -> None:
        """Use `connect`."""
        self.agent = agent
        self._threads = threads

    @classmethod
    async def connect(
        cls, target: str, *, timeout: float = 10.0, tls: Tls | None = None
    ) -> AsyncAgent:
        """As `Agent.connect`."""
        threads = _Threads()
        try:
            agent = await threads.make(
                client.Agent.connect, client.Agent.close, target, timeout=timeout, tls=tls
            )
        except BaseException:
            threads.close()
            raise
        return cls(agent, threads)

    async def info(self, **more: Any) -> AgentInfo:
        """As `Agent.info`."""
        return await self._threads.run(self.agent.info, **more)

    async def create_pool(self, name: str, size_bytes: int, **more: Any) -> Pool:
        """As `Agent.create_pool`."""
        return await self._threads.run(self.agent.create_pool, name, size_bytes, **more)

    async def import_pool(self, name: str, size_bytes: int | None = None, **more: Any) -> Pool:
        """As `Agent.import_pool`."""
        return await self._threads.run(self.agent.import_pool, name, size_bytes, **more)

    async def release_pool(self, pool: Pool | str) -> None:
        """As `Agent.release_pool`."""
        await self._threads.run(self.agent.release_pool, pool)

    async def register_engine(self, engine_id: str, *arguments: Any, **more: Any) -> AgentInfo:
        """As `Agent.register_engine`."""
        return await self._threads.run(self.agent.register_engine, engine_id, *arguments, **more)

    async def wait_ready(self, timeout: float) -> AgentInfo:
        """As `Agent.wait_ready`."""
        return await self._threads.run(self.agent.wait_ready, timeout)

    async def open_session(
        self, engine_id: str, *, events: bool = False, **more: Any
    ) -> AsyncSession:
        """As `Agent.open_session`; with `events=True` they are kept for `AsyncSession.events`."""
        session = AsyncSession(self._threads, client.EVENTS_AT_MOST if events else 0)
        session.session = await self._threads.make(
            self.agent.open_session, Session.close, engine_id, on_event=session.take, **more
        )
        return session

    async def drain(self, **more: Any) -> tuple[int, int]:
        """As `Agent.drain`."""
        return await self._threads.run(self.agent.drain, **more)

    async def close(self) -> None:
        """Closes sessions, unmaps pools, ends the connection. May be called twice."""
        await asyncio.to_thread(self.agent.close)
        self._threads.close()

    async def __aenter__(self) -> AsyncAgent:
        """Gives the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the client."""
        await asyncio.shield(self.close())


class AsyncBootstrap:
    """Speaks to the bootstrap service. `bootstrap` is the client of the other API below it."""

    def __init__(self, bootstrap: directory.Bootstrap, threads: _Threads) -> None:
        """Use `connect`."""
        self.bootstrap = bootstrap
        self._threads = threads

    @classmethod
    async def connect(
        cls, target: str, *, timeout: float = 10.0, tls: Tls | None = None
    ) -> AsyncBootstrap:
        """As `Bootstrap.connect`."""
        threads = _Threads()
        try:
            made = await threads.make(
                directory.Bootstrap.connect,
                directory.Bootstrap.close,
                target,
                timeout=timeout,
                tls=tls,
            )
        except BaseException:
            threads.close()
            raise
        return cls(made, threads)

    async def get_engine(self, engine_id: str, **more: Any) -> EngineInfo:
        """As `Bootstrap.get_engine`."""
        return await self._threads.run(self.bootstrap.get_engine, engine_id, **more)

    async def list_engines(self, **more: Any) -> list[EngineInfo]:
        """As `Bootstrap.list_engines`, all pages."""
        return await self._threads.run(lambda: list(self.bootstrap.list_engines(**more)))

    async def resolve_ranks(self, engine_id: str, *arguments: Any, **more: Any) -> list[RankInfo]:
        """As `Bootstrap.resolve_ranks`."""
        return await self._threads.run(self.bootstrap.resolve_ranks, engine_id, *arguments, **more)

    async def place_rooms(self, engine_id: str, *arguments: Any, **more: Any) -> int:
        """As `Bootstrap.place_rooms`."""
        return await self._threads.run(self.bootstrap.place_rooms, engine_id, *arguments, **more)

    async def lookup_rooms(self, engine_id: str, *arguments: Any, **more: Any) -> dict[int, int]:
        """As `Bootstrap.lookup_rooms`."""
        return await self._threads.run(self.bootstrap.lookup_rooms, engine_id, *arguments, **more)

    async def watch(self, **more: Any) -> AsyncIterator[WatchEvent]:
        """As `Bootstrap.watch`; ends with the iteration. It has a thread of its own."""
        stream: EngineWatch = self.bootstrap.watch(**more)
        thread = _Threads(1)
        try:
            while (event := await thread.run(next, stream, None)) is not None:
                yield event
        finally:
            thread.close()
            await asyncio.shield(asyncio.to_thread(stream.close))

    async def close(self) -> None:
        """Ends the connection and with it all watches."""
        await asyncio.to_thread(self.bootstrap.close)
        self._threads.close()

    async def __aenter__(self) -> AsyncBootstrap:
        """Gives the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the client."""
        await asyncio.shield(self.close())
