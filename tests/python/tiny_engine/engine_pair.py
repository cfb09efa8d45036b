"""Both engines in threads of this process, with fake agents and a router: for tests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_agent import FakeAgent
from fake_fabric import Fabric
from tiny_engine.decode_engine import DecodeEngine
from tiny_engine.engine import Engine
from tiny_engine.engine_parts import EngineOptions
from tiny_engine.model import Model
from tiny_engine.prefill_engine import PrefillEngine
from tiny_engine.router import Heard, Order, Router
from tiny_engine.sampling import Sampler

WAIT_SECONDS = 30.0


@dataclass
class Pair:
    """What a test works with. Use it from one thread."""

    fabric: Fabric
    agents: tuple[FakeAgent, FakeAgent]
    prefill: PrefillEngine
    decode: DecodeEngine
    router: Router
    heard: list[Heard]

    def ask(
        self, tokens: tuple[int, ...], max_tokens: int = 6, order: Order = "together", **more: Any
    ) -> int:
        """Submits a prompt, to be digested."""
        return self.router.submit(tokens, max_tokens, Sampler(**more), order, digest=True)

    def wait(self, true: Callable[[], bool], what: str) -> None:
        """Hears events until `true`."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not true():
            assert time.monotonic() < deadline, f"waited for {what}, heard {self.heard[-8:]}"
            self.heard += self.router.poll(0.05)

    def wait_event(self, room: int, event: str, side: str = "decode") -> Heard:
        """Hears until that event has come; returns it."""
        found: list[Heard] = []

        def come() -> bool:
            found.extend(h for h in self.heard if (h.room, h.event, h.side) == (room, event, side))
            return bool(found)

        self.wait(come, f"{event} of room {room} at {side}")
        return found[0]

    def answer(self, room: int) -> tuple[int, ...]:
        """Waits until a room is released on both sides; returns the answer's tokens."""
        for side in ("prefill", "decode"):
            self.wait_event(room, "released", side)
        mine = [h for h in self.heard if h.room == room]
        return tuple(h.data["token"] for h in mine if h.event == "token")

    def failure(self, room: int, side: str) -> tuple[str, str]:
        """Waits for a room's failure; returns code and reason."""
        data = self.wait_event(room, "failed", side).data
        return data["code"], data["reason"]

    def ledger(self) -> list[tuple[int, int]]:
        """Pages leased and slots taken, of both engines; all zero where nothing runs."""
        engines: tuple[Engine, ...] = (self.prefill, self.decode)
        return [(e.pages.leased_count, e.options.aux_slots - e.slots.free_count) for e in engines]


@contextlib.contextmanager
def running(
    model: Model, folder: Path, num_pages: int = 64, stop_tokens: frozenset[int] = frozenset()
) -> Iterator[Pair]:
    """Starts everything; stops it at the end, whatever happened."""
    fabric = Fabric()
    with contextlib.ExitStack() as stack:
        agents = (
            FakeAgent(fabric, folder / "pa.sock", "prefill-agent"),
            FakeAgent(fabric, folder / "da.sock", "decode-agent"),
        )
        for agent in agents:
            stack.callback(agent.stop)
        options = [
            EngineOptions(agent.target, name, folder / f"{name}.sock", num_pages, aux_slots=16)
            for agent, name in zip(agents, ("prefill-0", "decode-0"), strict=True)
        ]
        prefill = PrefillEngine(model, options[0])
        stack.callback(prefill.close)
        decode = DecodeEngine(model, options[1], stop_tokens)
        stack.callback(decode.close)
        for engine in (prefill, decode):
            thread = threading.Thread(target=engine.run, daemon=True)
            thread.start()
            stack.callback(thread.join, WAIT_SECONDS)
            stack.callback(engine.stop)
        router = Router([options[0].listen], [options[1].listen])
        stack.callback(router.close)
        yield Pair(fabric, agents, prefill, decode, router, [])
