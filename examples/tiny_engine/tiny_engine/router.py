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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tiny_engine.sampling import Sampler
from tiny_engine.tokenizer import SYSTEM_PROMPT, StreamDecoder, load_tokenizer
from tiny_engine.wire import LineSocket, Message
from tiny_engine.work import Work

Side = Literal["prefill", "decode"]
Order = Literal["together", "grant_first", "send_first"]
# How decode learns which replica of the prefill engine has a room.
FindBy = Literal["modulo", "hint", "directory"]
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
    at: dict[Side, EngineLink]  # the replicas that were chosen
    told: set[Side] = field(default_factory=set)
    opened: set[Side] = field(default_factory=set)  # where the agent knows of it
    ended: set[Side] = field(default_factory=set)  # from where nothing more will come
    over: bool = False


class EngineLink:
    """A connection to one engine. Owns the socket and the thread that reads from it."""

    def __init__(
        self, side: Side, path: Path, heard: queue.SimpleQueue[tuple[EngineLink, Message]]
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

    @property
    def dp_rank(self) -> int:
        """Which replica it is."""
        return int(self.hello.get("dp_rank", 0))

    def send(self, message: Message) -> None:
        """Sends; a lost connection is heard as the event "gone"."""
        self._socket.send(message)

    def _read(self, messages: Iterator[Message]) -> None:
        for message in messages:
            self._heard.put((self, message))
        self._heard.put((self, {"event": "gone"}))

    def close(self) -> None:
        """Ends the connection; the engine drops what it does for this router."""
        self._socket.close()
        self._thread.join(timeout=5)


class Router:
    """A prefill and a decode engine of one or more replicas. For one thread; owns all links."""

    def __init__(
        self, prefill: Sequence[Path], decode: Sequence[Path], find_by: FindBy = "modulo"
    ) -> None:
        """Connects to all replicas. Raises EngineGoneError.

        `find_by` must be what the prefill engine registered: with "modulo" a room's number chooses
        its prefill replica, else the router does, and with "hint" it tells the decode engine.
        """
        self._heard: queue.SimpleQueue[tuple[EngineLink, Message]] = queue.SimpleQueue()
        self._find_by = find_by
        self.links: dict[Side, list[EngineLink]] = {"prefill": [], "decode": []}
        try:
            paths: dict[Side, Sequence[Path]] = {"prefill": prefill, "decode": decode}
            for side, of_side in paths.items():
                for path in of_side:
                    self.links[side].append(EngineLink(side, path, self._heard))
                self.links[side].sort(key=lambda link: link.dp_rank)
        except BaseException:
            self.close()
            raise
        self._rooms: dict[int, _Room] = {}
        self._gone: set[EngineLink] = set()

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
        number = secrets.randbits(63)
        count = len(self._rooms)
        ranks = self.links["prefill"]
        rank = (number if self._find_by == "modulo" else count) % len(ranks)
        at: dict[Side, EngineLink] = {
            "prefill": ranks[rank],
            "decode": self.links["decode"][count % len(self.links["decode"])],
        }
        work = Work(
            room=number,
            tokens=tokens,
            max_tokens=max_tokens,
            prefill_engine=at["prefill"].engine_id,
            prefill_dp_rank=rank if self._find_by == "hint" else None,
            temperature=sampler.temperature,
            top_k=sampler.top_k,
            seed=sampler.seed,
            wait_for_grant=order == "grant_first",
            digest=digest,
        )
        room = self._rooms[work.room] = _Room(work, order, at)
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
        room = self._rooms[room_id]
        for side in room.told:
            room.at[side].send({"op": "abort", "room": room_id, "detail": detail})

    def over(self, room_id: int) -> bool:
        """Whether the answer is whole, or will not come."""
        return self._rooms[room_id].over

    def close(self) -> None:
        """Ends all connections."""
        for link in self.all_links():
            link.close()

    def all_links(self) -> list[EngineLink]:
        """Prefill's first."""
        return [*self.links["prefill"], *self.links["decode"]]

    def _tell(self, room: _Room, side: Side) -> None:
        room.told.add(side)
        link = room.at[side]
        if link in self._gone:
            self._heard.put((link, _gone_message(side, room.work.room)))
        link.send(room.work.to_message())

    def _take(self, link: EngineLink, message: Message) -> list[Heard]:
        side = link.side
        event, room_id = str(message.get("event")), message.get("room", -1)
        heard = [Heard(side, room_id, event, message)]
        if event == "gone":
            self._gone.add(link)
            for known_id, known in self._rooms.items():
                its = known.at[side] is link and side in known.told and side not in known.ended
                if its and not known.over:
                    heard += self._take(link, _gone_message(side, known_id))
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
                room.at[other].send({"op": "abort", "room": room.work.room, **detail})
        elif event == "done":
            room.over = True


def _gone_message(side: Side, room: int) -> Message:
    """What the engine would have said if it could."""
    why = {"code": "UNAVAILABLE", "reason": "ENGINE_GONE", "message": f"the {side} engine has gone"}
    return {"event": "failed", "room": room, **why}


def main(arguments: list[str] | None = None) -> int:
    """Asks running engines one question; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tiny_engine.router")
    paths = {"required": True, "type": Path, "nargs": "+"}
    parser.add_argument("--prefill", help="sockets of the prefill engine's replicas", **paths)
    parser.add_argument("--decode", help="sockets of the decode engine's replicas", **paths)
    parser.add_argument("--find-by", choices=("modulo", "hint", "directory"), default="modulo")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest answer, in tokens")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds without any news")
    parser.add_argument("prompt", help="what to ask")
    options = parser.parse_args(arguments)
    try:
        router = Router(options.prefill, options.decode, options.find_by)
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
