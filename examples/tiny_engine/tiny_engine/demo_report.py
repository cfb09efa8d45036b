"""What the demo says before and after its rooms, and the same as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from tiny_engine.demo_cluster import SIDES, Addresses, Cluster
from tiny_engine.demo_options import DemoOptions
from tiny_engine.demo_proof import Proof
from tiny_engine.demo_rooms import Room
from tiny_engine.demo_table import notes, table
from tiny_engine.demo_terminal import Terminal

_FAILED, _KILL_SHOWN = 1, 3


class Report:
    """Writes to a terminal, and to the file of --json. For one thread."""

    def __init__(self, options: DemoOptions, terminal: Terminal) -> None:
        self._options = options
        self._terminal = terminal

    def title(self) -> None:
        """What is going to happen."""
        count = len(self._options.prompts)
        what = "a prompt" if count == 1 else f"{count} prompts"
        self._terminal.say(self._terminal.style.bold("Pageferry demo"))
        self._terminal.say(
            f"SmolLM2-135M-Instruct answers {what}. One process computes the prompts, another one\n"
            "writes the answers, and Pageferry moves the KV cache between them.\n"
        )

    def services(self, addresses: Addresses, seconds: float) -> None:
        """What runs now."""
        for name, line in addresses.lines.items():
            if name.split()[-1] == "engine" or " engine " in name:
                continue
            where = line.split(", metrics")[0]
            self._terminal.say(self._terminal.style.dim(f"  {name:15} {where}"))
        self._terminal.say(f"  {len(addresses.lines)} processes are up after {seconds:.1f} s.\n")

    def killed(self, what: str, process: int, received: int) -> None:
        """The prefill side was just killed."""
        text = f"kill -9 of the prefill {what}, process {process}, after {_count(received, 'room')}"
        self._terminal.say(self._terminal.style.bad(text))

    def rooms(self, rooms: Sequence[Room], killed_at: float) -> None:
        """Answers, table, and the errors if there were any."""
        say, style = self._terminal.say, self._terminal.style
        done = [room for room in rooms if room.state == "done"]
        say(style.bold("\nAnswers"))
        self._terminal.answers(done)
        if any(room.received for room in rooms):
            say(style.bold("Rooms"))
            say("\n".join(table(rooms)))
            say(style.dim("\n".join(f"  {line}" for line in notes(rooms))) + "\n")
        if len(done) == len(rooms):
            return
        say(style.bold("Rooms that failed"))
        for room in rooms:
            if room.state == "failed":
                say(f"  room {room.id}, prompt {room.number}")
                for side in SIDES:
                    say(f"    {side:8} {_why(room, side, killed_at)}")
        say()

    def proof_begins(self, rooms: Sequence[Room]) -> None:
        """What is computed now; it takes about as long as the rooms did."""
        say, done = self._terminal.say, sum(room.state == "done" for room in rooms)
        say(self._terminal.style.bold("Proof"))
        again = f"Computing {_count(done, 'prompt')} again, one by one"
        say(f"  {again} in one process, without Pageferry")

    def verdict(
        self, rooms: Sequence[Room], proof: Proof, trouble: Sequence[str], killed: bool
    ) -> int:
        """Says what was proven; returns the exit status."""
        say, style = self._terminal.say, self._terminal.style
        failed = [room for room in rooms if room.state != "done"]
        wrong = [*proof.differences, *trouble, *self._wrong_ways(rooms)]
        for line in _proof_lines(rooms, proof):
            say(f"  {line}")
        if not trouble:
            both = "The decode engine has" if killed else "Both engines have"
            say(f"  {both} all pages back.")
        for line in wrong:
            say(style.bad(f"  {line}"))
        say()
        if killed and not failed:
            wrong.append("every room was through before the kill; use a smaller N")
        elif killed:
            wrong += [f"room {r.id} failed without a reason" for r in failed if not _clean(r)]
        else:
            wrong += [f"prompt {r.number} was not answered" for r in failed]
        if wrong:
            self._terminal.result(style.bad("FAILED") + f": {wrong[0]}")
            return _FAILED
        if killed:
            went = _count(len(rooms) - len(failed), "room")
            self._terminal.result(
                f"{went} went through, equal in tokens and pages; "
                f"{_count(len(failed), 'room')} ended with a clean error."
            )
            return _KILL_SHOWN
        size = sum(room.bytes for room in rooms) / 1e6
        moved = f"{_count(proof.moved_pages, 'page')}, {size:.1f} MB by {self._options.transport}"
        equal = f"{_count(proof.tokens, 'token')} and {_count(proof.pages, 'page')} are equal"
        said = f"{_count(len(rooms), 'room')}, {moved}; {equal}."
        self._terminal.result(f"{style.good('OK')}: {said}")
        return 0

    def _wrong_ways(self, rooms: Sequence[Room]) -> list[str]:
        """Rooms that went another way than asked, and orders of arrival that did not occur."""
        asked = self._options.transport
        wrong = [
            f"room {room.id} went by {room.transport!r}, not by {asked}"
            for room in rooms
            if room.received and room.transport != asked
        ]
        for order in ("grant_first", "send_first"):
            forced = [r for r in rooms if r.order == order and r.received]
            if forced and not any(room.seen_order == order for room in forced):
                wrong.append(f"no room saw {order.replace('_', ' ')}, though that was arranged")
        return wrong

    def kept(self, cluster: Cluster) -> None:
        """How to talk to what is running."""
        lines = [f"  {name:15} {where}" for name, where in cluster.addresses.lines.items()]
        ask = " ".join(f"--{side} {' '.join(map(str, cluster.sockets(side)))}" for side in SIDES)
        ask += f" --find-by {self._options.find_by}"
        self._terminal.result(
            "\nEverything is running. Ctrl-C ends it.\n" + "\n".join(lines) + "\n\n"
            f"Ask something, from examples/tiny_engine:\n"
            f"  {sys.executable} -m tiny_engine.router {ask} 'What is a ferry?'"
        )

    def end(
        self,
        rooms: Sequence[Room],
        status: int,
        error: str,
        trouble: Sequence[str],
        removed: str = "",
    ) -> None:
        """The JSON file; and the last words, where something went wrong."""
        if status in (0, _FAILED, _KILL_SHOWN):
            self.write_json(rooms, status, error)
        bad = self._terminal.style.bad
        if removed:
            self._terminal.say(f"Removed what the killed agent could not: {removed}")
        if error:
            word = "FAILED" if status == _FAILED else "Stopped"
            self._terminal.result(f"{bad(word)}: {error}")
        for line in trouble:
            self._terminal.result(bad(f"  {line}"))

    def write_json(self, rooms: Sequence[Room], status: int, error: str) -> None:
        """Writes the file of --json."""
        if self._options.json is None:
            return
        result: dict[str, Any] = {
            "ok": status == 0,
            "transport": self._options.transport,
            "rooms": [_room_json(room) for room in rooms],
        }
        if error:
            result["error"] = error
        text = json.dumps(result, indent=2) + "\n"
        try:
            self._options.json.write_text(text, encoding="utf-8")
        except OSError as failure:
            self._terminal.result(f"cannot write {self._options.json}: {failure}")


def _clean(room: Room) -> bool:
    """Whether decode was told why."""
    why = room.failures.get("decode") or room.failures.get("prefill")
    return why is not None and why.reason not in ("", "UNSPECIFIED")


def _why(room: Room, side: str, killed_at: float) -> str:
    why = next((why for name, why in room.failures.items() if name == side), None)
    if why is None:
        return "was never told" if side == "decode" else "had not begun, or had done its part"
    after = f", {why.at - killed_at:.2f} s after the kill" if killed_at else ""
    return f"{why.code} ({why.reason}){after}: {why.message}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _proof_lines(rooms: Sequence[Room], proof: Proof) -> list[str]:
    """What was compared with what."""
    if not proof.answers:
        return ["Nothing was answered, so there is nothing to compare."]
    orders = [room.seen_order for room in rooms if room.received]
    grant, send, between = map(orders.count, ("grant_first", "send_first", "grant_between"))
    return [
        f"tokens  {sum(room.tokens_equal for room in rooms)} of {_count(proof.answers, 'answer')} "
        f"equal, {_count(proof.tokens, 'token')} in all",
        f"pages   {sum(room.pages_equal for room in rooms)} of {_count(proof.answers, 'prompt')} "
        f"equal, {_count(proof.pages, 'page')} of {proof.page_bytes:,} bytes: "
        f"{proof.moved_pages} moved for their",
        f"        room, {proof.pages - proof.moved_pages} that decode had from an earlier one",
        "Pages were compared by SHA-256 of their bytes, all layers, K and V, as they lay in the",
        "decode engine's memory when their room had succeeded.",
        f"The grant came before the first page in {_count(grant, 'room')}, after the last one in "
        f"{send}, in between in {between}.",
    ]


def _room_json(room: Room) -> dict[str, Any]:
    result: dict[str, Any] = {
        "room": room.id,
        "prompt_tokens": len(room.tokens),
        "pages": room.pages,
        "bytes": room.bytes,
        "seconds": room.seconds,
        "tokens_equal": room.tokens_equal,
        "pages_equal": room.pages_equal,
        "cached_pages": room.cached_pages,
        "answer_tokens": len(room.output),
        "transport": room.transport,
        "order": room.seen_order,
    }
    if room.failures:
        result["failures"] = {
            side: {"code": why.code, "reason": why.reason, "message": why.message}
            for side, why in room.failures.items()
        }
    return result
