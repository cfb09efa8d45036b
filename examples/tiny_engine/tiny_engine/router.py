"""The router: gives each prompt a room of its own, sends it to both engines, hears what they tell.

It knows nothing of Pageferry but that both engines must be told the same room. As a command it asks
engines that run already: `python -m tiny_engine.router --prefill P.sock --decode D.sock "Hi"`.
"""

from __future__ import annotations

import argparse
import queue
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tiny_engine.sampling import Sampler
from tiny_engine.tokenizer import SYSTEM_PROMPT, StreamDecoder, load_tokenizer
from tiny_engine.wire import LineSocket, Message
from tiny_engine.work import Work

Side = Literal["prefill", "decode"]
Order = Literal["together", "grant_first", "send_first"]
_HELLO_SECONDS = 5.0


class EngineGoneError(RuntimeError):
    """An engine cannot be reached, or has ended the connection."""


@dataclass(frozen=True)
class Heard:
    """One event of one engine."""

    side: Side
    room: int
    event: str
    data: Message


@dataclass
class _Room:
    """Where a room stands: which engines were told of it, and which have opened it."""

    work: Work
    order: Order
    told: set[Side] = field(default_factory=set)
    opened: set[Side] = field(default_factory=set)  # where the agent knows of it
    ended: set[Side] = field(default_factory=set)  # from where nothing more will come
    over: bool = False


class EngineLink:
    """A connection to one engine. Owns the socket and the thread that reads from it."""

    def __init__(
        self, side: Side, path: Path, heard: queue.SimpleQueue[tuple[Side, Message]]
    ) -> None:
        """Connects. Raises EngineGoneError where that engine does not listen."""
        self.side = side
        self.path = path
        try:
            self._socket = LineSocket.connect(path, timeout=_HELLO_SECONDS)
        except OSError as error:
            raise EngineGoneError(f"no {side} engine at {path}: {error}") from error
        self._heard = heard
        messages = self._socket.messages()
        self.hello = next(messages, {})
        self._socket.bound_reading(None)
        if self.hello.get("role") != side:
            self._socket.close()
            raise EngineGoneError(f"what listens at {path} is no {side} engine")
        self._thread = threading.Thread(target=self._read, args=(messages,), daemon=True)
        self._thread.start()

    @property
    def engine_id(self) -> str:
        """The engine's name in Pageferry."""
        return str(self.hello["engine"])

    def send(self, message: Message) -> None:
        """Sends; a lost connection is heard as the event "gone"."""
        self._socket.send(message)

    def _read(self, messages: Iterator[Message]) -> None:
        for message in messages:
            self._heard.put((self.side, message))
        self._heard.put((self.side, {"event": "gone"}))

    def close(self) -> None:
        """Ends the connection; the engine drops what it does for this router."""
        self._socket.close()
        self._thread.join(timeout=5)


class Router:
    """One prefill and one decode engine. For one thread; owns both links."""

    def __init__(self, prefill: Path, decode: Path) -> None:
        """Connects to both. Raises EngineGoneError."""
        self._heard: queue.SimpleQueue[tuple[Side, Message]] = queue.SimpleQueue()
        self.links: dict[Side, EngineLink] = {}
        try:
            paths: dict[Side, Path] = {"prefill": prefill, "decode": decode}
            for side, path in paths.items():
                self.links[side] = EngineLink(side, path, self._heard)
        except BaseException:
            self.close()
            raise
        self._rooms: dict[int, _Room] = {}
        self._gone: set[Side] = set()

    def submit(
        self,
        tokens: tuple[int, ...],
        max_tokens: int,
        sampler: Sampler,
        order: Order = "together",
        digest: bool = False,
    ) -> int:
        """Sends a prompt on its way; returns its room.

        "grant_first" tells prefill when decode has granted pages, and makes it wait for the grant;
        "send_first" tells decode when prefill has handed all pages over.
        """
        work = Work(
            room=secrets.randbits(63),
            tokens=tokens,
            max_tokens=max_tokens,
            prefill_engine=self.links["prefill"].engine_id,
            temperature=sampler.temperature,
            top_k=sampler.top_k,
            seed=sampler.seed,
            wait_for_grant=order == "grant_first",
            digest=digest,
        )
        room = self._rooms[work.room] = _Room(work, order)
        if order != "grant_first":
            self._tell(room, "prefill")
        if order != "send_first":
            self._tell(room, "decode")
        return work.room

    def poll(self, timeout: float) -> list[Heard]:
        """What the engines told since the last call; waits up to `timeout` s for the first."""
        heard: list[Heard] = []
        try:
            item = self._heard.get(timeout=timeout)
            while True:
                heard += self._take(*item)
                item = self._heard.get_nowait()
        except queue.Empty:
            return heard

    def abort(self, room_id: int, detail: str) -> None:
        """Ends a room at both engines."""
        for side in self._rooms[room_id].told:
            self.links[side].send({"op": "abort", "room": room_id, "detail": detail})

    def over(self, room_id: int) -> bool:
        """Whether the answer is whole, or will not come."""
        return self._rooms[room_id].over

    def close(self) -> None:
        """Ends both connections."""
        for link in self.links.values():
            link.close()

    def _tell(self, room: _Room, side: Side) -> None:
        room.told.add(side)
        if side in self._gone:
            self._heard.put((side, _gone_message(side, room.work.room)))
        self.links[side].send(room.work.to_message())

    def _take(self, side: Side, message: Message) -> list[Heard]:
        event, room_id = str(message.get("event")), message.get("room", -1)
        heard = [Heard(side, room_id, event, message)]
        if event == "gone":
            self._gone.add(side)
            for known_id, known in self._rooms.items():
                if not known.over and side in known.told and side not in known.ended:
                    heard += self._take(side, _gone_message(side, known_id))
            return heard
        room = self._rooms.get(room_id)
        if room is not None and not room.over:
            self._follow(room, side, event)
        return heard

    def _follow(self, room: _Room, side: Side, event: str) -> None:
        """Tells the second engine when its turn has come, and notes the end."""
        if event in ("granted", "opened"):
            room.opened.add(side)
        elif event in ("finished", "failed", "done"):
            room.ended.add(side)
        if event == "granted" and "prefill" not in room.told:
            self._tell(room, "prefill")
        elif event == "sent" and "decode" not in room.told:
            self._tell(room, "decode")
        elif event == "failed":
            other: Side = "decode" if side == "prefill" else "prefill"
            room.over = side == "decode" or other not in room.told
            if side not in room.opened and other in room.told:
                # No agent knows, so nobody else can tell the other engine.
                detail = {"detail": f"the {side} engine refused the room"}
                self.links[other].send({"op": "abort", "room": room.work.room, **detail})
        elif event == "done":
            room.over = True


def _gone_message(side: Side, room: int) -> Message:
    """What the engine would have said if it could."""
    why = {"code": "UNAVAILABLE", "reason": "ENGINE_GONE", "message": f"the {side} engine has gone"}
    return {"event": "failed", "room": room, **why}


def main(arguments: list[str] | None = None) -> int:
    """Asks running engines one question; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tiny_engine.router")
    parser.add_argument("--prefill", required=True, type=Path, help="socket of the prefill engine")
    parser.add_argument("--decode", required=True, type=Path, help="socket of the decode engine")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest answer, in tokens")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds without any news")
    parser.add_argument("prompt", help="what to ask")
    options = parser.parse_args(arguments)
    try:
        router = Router(options.prefill, options.decode)
    except EngineGoneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        return _ask(router, options)
    except EngineGoneError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    finally:
        router.close()


def _ask(router: Router, options: argparse.Namespace) -> int:
    tokenizer = load_tokenizer()
    tokens = tuple(tokenizer.encode_chat(options.prompt, SYSTEM_PROMPT))
    sampler = Sampler(options.temperature, 40, options.seed)
    room = router.submit(tokens, options.max_tokens, sampler)
    text = StreamDecoder(tokenizer)
    patience = time.monotonic() + options.timeout
    while not router.over(room):
        for heard in router.poll(0.5):
            patience = time.monotonic() + options.timeout
            if heard.event == "token":
                print(text.push(heard.data["token"]), end="", flush=True)
            elif heard.event == "failed":
                why = "{code} ({reason}): {message}".format_map(heard.data)
                print(f"\nerror: room {room} at {heard.side}: {why}", file=sys.stderr)
                if router.over(room):
                    return 1
        if time.monotonic() > patience:
            raise EngineGoneError(f"no news of room {room} for {options.timeout:.0f} s")
    print(text.finish())
    return 0


if __name__ == "__main__":
    sys.exit(main())
