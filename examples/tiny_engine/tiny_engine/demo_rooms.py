"""The demo's traffic: which prompt goes when, and what is known of each room."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tiny_engine.demo_processes import DemoError
from tiny_engine.demo_prompts import Prompt
from tiny_engine.router import Heard, Order, Router, Side
from tiny_engine.sampling import Sampler
from tiny_engine.tokenizer import ChatTokenizer, StreamDecoder
from tiny_engine.wire import Message

# Prompts that share so many tokens with an earlier one wait for it: decode has that prefix then.
_SHARED_TOKENS_AT_LEAST = 64
_ORDERS: tuple[Order, ...] = (
    "grant_first",
    "together",
    "send_first",
    "send_first",
    "grant_first",
    "send_first",
    "together",
    "send_first",
)
_POLL_SECONDS = 0.05

State = Literal["waiting", "opened", "answering", "done", "failed"]


@dataclass(frozen=True)
class Failure:
    """Why a room failed at one engine, and when by the demo's clock."""

    code: str
    reason: str
    message: str
    at: float


@dataclass
class Room:
    """All that is known of one prompt and its room."""

    number: int
    prompt: Prompt
    tokens: tuple[int, ...]
    sampler: Sampler
    max_tokens: int
    order: Order
    follows: int | None  # number of the prompt whose prefix it shares
    id: int = -1
    state: State = "waiting"
    computed_pages: int = 0
    granted_pages: int = 0
    cached_pages: int = 0
    pages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    transport: str = ""
    seen_order: str = ""
    digests: list[str] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    failures: dict[Side, Failure] = field(default_factory=dict)
    tokens_equal: bool = False
    pages_equal: bool = False

    @property
    def received(self) -> bool:
        """Whether its pages are in place at decode."""
        return self.state in ("answering", "done") or bool(self.output)

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ("done", "failed")


class Watcher(Protocol):
    """Who shows what happens."""

    def happened(self, room: Room, event: str) -> None:
        """A room changed."""

    def tick(self) -> None:
        """Called often."""


def plan_rooms(
    prompts: Sequence[Prompt], tokenizer: ChatTokenizer, max_tokens: int, seed: int
) -> list[Room]:
    """A room for each prompt, in order, with the orders of arrival taking turns."""
    rooms: list[Room] = []
    for index, prompt in enumerate(prompts):
        tokens = tuple(tokenizer.encode_chat(prompt.text))
        follows = next((r.number for r in rooms if _shared(r.tokens, tokens)), None)
        order: Order = "grant_first" if follows else _ORDERS[index % len(_ORDERS)]
        sampler = Sampler(prompt.temperature, top_k=40, seed=(seed + index) % (1 << 64))
        most = prompt.max_tokens or max_tokens
        rooms.append(Room(index + 1, prompt, tokens, sampler, most, order, follows))
    return rooms


def _shared(one: Sequence[int], other: Sequence[int]) -> bool:
    head = _SHARED_TOKENS_AT_LEAST
    return len(one) >= head and tuple(one[:head]) == tuple(other[:head])


class Traffic:
    """Sends the rooms' prompts, and takes in what the engines tell. For one thread."""

    def __init__(
        self,
        rooms: list[Room],
        router: Router,
        tokenizer: ChatTokenizer,
        watcher: Watcher,
        at_most: int = 8,
    ) -> None:
        self.rooms = rooms
        self._router = router
        self._watcher = watcher
        self._at_most = at_most
        self._decoders = {room.number: StreamDecoder(tokenizer) for room in rooms}
        self._by_id: dict[int, Room] = {}

    def run(self, check: Callable[[], None], seconds_without_news: float) -> None:
        """Until every room is over. `check` is called often, and may raise. Raises DemoError."""
        patience = time.monotonic() + seconds_without_news
        while not all(room.over for room in self.rooms):
            self._submit()
            for heard in self._router.poll(_POLL_SECONDS):
                patience = time.monotonic() + seconds_without_news
                self._take(heard)
            check()
            self._watcher.tick()
            if time.monotonic() > patience:
                waits = ", ".join(f"{r.number} ({r.state})" for r in self.rooms if not r.over)
                raise DemoError(
                    f"waited {seconds_without_news:.0f} s for news of the prompts {waits}"
                )

    @staticmethod
    def engine_stats(
        router: Router, side: Side, check: Callable[[], None], seconds: float = 10.0
    ) -> tuple[int, int]:
        """Waits until an engine holds no room and no page; returns how many it does hold then.

        `check` is called often, and may raise.
        """
        deadline = time.monotonic() + seconds
        while True:
            check()
            for link in router.links[side]:
                link.send({"op": "stats"})
            answers: list[Message] = []
            while len(answers) < len(router.links[side]) and time.monotonic() < deadline:
                answers += [
                    h.data for h in router.poll(0.2) if (h.side, h.event) == (side, "stats")
                ]
                check()
            held = sum(data["rooms"] for data in answers)
            pages = sum(data["leased_pages"] for data in answers)
            if (held, pages) == (0, 0) or time.monotonic() > deadline:
                return held, pages

    def _submit(self) -> None:
        running = sum(1 for room in self.rooms if room.id >= 0 and not room.over)
        for room in self.rooms:
            if room.id >= 0 or running >= self._at_most or not self._may_begin(room):
                continue
            room.id = self._router.submit(
                room.tokens, room.max_tokens, room.sampler, room.order, digest=True
            )
            room.state = "opened"
            self._by_id[room.id] = room
            self._watcher.happened(room, "submitted")
            running += 1

    def _may_begin(self, room: Room) -> bool:
        if room.follows is None:
            return True
        earlier = self.rooms[room.follows - 1]
        return earlier.received or earlier.over

    def _take(self, heard: Heard) -> None:
        room = self._by_id.get(heard.room)
        if room is None or (room.over and heard.event != "failed"):
            return
        data = heard.data
        match heard.event:
            case "chunk":
                room.computed_pages = data["pages"]
            case "sent":
                room.seen_order = data["order"]
            case "granted":
                room.granted_pages, room.cached_pages = data["pages"], data["cached_pages"]
            case "transfer":
                room.pages = data["pages"]
            case "received":
                room.state = "answering"
                room.pages, room.bytes = data["pages"], data["bytes"]
                room.seconds, room.transport = data["seconds"] or 0.0, data["transport"]
                room.digests = data["digests"]
            case "token":
                room.output.append(data["token"])
                room.text += self._decoders[room.number].push(data["token"])
            case "done":
                room.state, room.finish = "done", data["finish"]
                room.text += self._decoders[room.number].finish()
            case "failed" if heard.side == "prefill" and room.received:
                return  # it went when its part was done
            case "failed":
                why = Failure(data["code"], data["reason"], data["message"], time.monotonic())
                room.failures[heard.side] = why
                if self._router.over(room.id) and room.state != "done":
                    room.state = "failed"
        self._watcher.happened(room, heard.event)
