"""What the demo shows while it runs: a live block on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import TextIO

from tiny_engine.demo_rooms import Room

_FRAME_SECONDS = 0.1
_WIDTH_AT_MOST = 110
_BAR_CELLS = 12


class Style:
    """Colours and symbols, as far as the stream can show them."""

    def __init__(self, out: TextIO) -> None:
        self.terminal = out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._colour = self.terminal and "NO_COLOR" not in os.environ
        unicode = "utf" in (out.encoding or "").lower()
        self.done, self.failed, self.busy, self.idle = "✓✗•·" if unicode else "+x>."
        self.full, self.empty = "━─" if unicode else "#-"
        self.dots = "…" if unicode else "..."

    def bold(self, text: str) -> str:
        """Text that stands out."""
        return f"\x1b[1m{text}\x1b[0m" if self._colour else text

    def dim(self, text: str) -> str:
        """Text that steps back."""
        return f"\x1b[2m{text}\x1b[0m" if self._colour else text

    def good(self, text: str) -> str:
        """What went well."""
        return f"\x1b[32m{text}\x1b[0m" if self._colour else text

    def bad(self, text: str) -> str:
        """What did not."""
        return f"\x1b[31m{text}\x1b[0m" if self._colour else text

    def shorten(self, text: str, width: int) -> str:
        """The text on one line, cut at its end to `width`."""
        line = " ".join(text.split())
        return line if len(line) <= width else line[: width - len(self.dots)] + self.dots

    def tail(self, text: str, width: int) -> str:
        """The text on one line, cut at its beginning."""
        line = " ".join(text.split())
        return line if len(line) <= width else self.dots + line[len(self.dots) - width :]


class Terminal:
    """Prints; and shows rooms as they go. For one thread."""

    def __init__(self, quiet: bool = False, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._quiet = quiet
        self.style = Style(out)
        self._rooms: Sequence[Room] = ()
        self._drawn = 0
        self._drawn_at = 0.0
        self._status = False
        self._start = time.monotonic()

    @property
    def width(self) -> int:
        """Columns to use."""
        return min(shutil.get_terminal_size((100, 24)).columns, _WIDTH_AT_MOST)

    def say(self, text: str = "") -> None:
        """Prints a line or more; nothing where quiet."""
        if not self._quiet:
            self._clear_status()
            self._erase()
            print(text, file=self._out, flush=True)

    def result(self, text: str) -> None:
        """Prints the last word, also where quiet."""
        self._clear_status()
        print(text, file=self._out, flush=True)

    def status(self, text: str) -> None:
        """Shows a line that the next one replaces; only on a terminal."""
        if self.style.terminal and not self._quiet:
            self._clear_status()
            self._out.write(self.style.dim(self.style.shorten(text, self.width - 1)))
            self._out.flush()
            self._status = True

    def _clear_status(self) -> None:
        if self._status:
            self._out.write("\r\x1b[K")
            self._status = False

    # --- rooms ---

    def begin(self, rooms: Sequence[Room]) -> None:
        """Begins to show rooms."""
        self._rooms = rooms
        self._start = time.monotonic()
        self._clear_status()
        if self._live:
            self._out.write("\x1b[?25l")

    def happened(self, room: Room, event: str) -> None:
        """Prints what is worth a line, where there is no live block."""
        if self._live or self._quiet:
            return
        text = {
            "submitted": f"room {room.id}: {len(room.tokens)} tokens, "
            + self.style.shorten(room.prompt.text, 50),
            "granted": f"granted pages: {room.granted_pages}"
            + (f", there already: {room.cached_pages}" if room.cached_pages else ""),
            "received": f"received pages: {room.pages}, {room.bytes / 1e6:.2f} MB",
            "done": f"answered with {len(room.output)} tokens",
        }.get(event)
        if event == "failed":
            side, why = next(reversed(room.failures.items()))
            text = f"failed at {side}: {why.code} ({why.reason})"
        if text is not None:
            seconds = time.monotonic() - self._start
            self.say(f"  {seconds:6.2f} s  prompt {room.number}  {text}")

    def tick(self) -> None:
        """Draws the live block again, ten times a second."""
        if self._live and time.monotonic() - self._drawn_at >= _FRAME_SECONDS:
            self._draw()

    def end(self) -> None:
        """Takes the live block away. May be called at any time."""
        if self._live and self._rooms:
            self._erase()
            self._out.write("\x1b[?25h")
            self._out.flush()
        self._clear_status()
        self._rooms = ()

    @property
    def _live(self) -> bool:
        return self.style.terminal and not self._quiet

    def _erase(self) -> None:
        if self._drawn:
            self._out.write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def _draw(self) -> None:
        width = self.width - 1
        lines_at_most = max(3, shutil.get_terminal_size((100, 24)).lines - 2)
        rooms = list(self._rooms)
        if len(rooms) > lines_at_most:
            # The ones that are on their way, with as many others as there is space for.
            rooms.sort(key=lambda room: (room.over, room.id < 0))
            rooms = sorted(rooms[:lines_at_most], key=lambda room: room.number)
        two = 2 * len(rooms) <= lines_at_most
        lines = [line for room in rooms for line in self._lines(room, width, two)]
        self._erase()
        self._out.write("".join(f"{line}\n" for line in lines))
        self._out.flush()
        self._drawn = len(lines)
        self._drawn_at = time.monotonic()

    def _lines(self, room: Room, width: int, two: bool) -> list[str]:
        style = self.style
        symbol = {
            "done": style.good(style.done),
            "failed": style.bad(style.failed),
            "waiting": style.dim(style.idle),
        }.get(room.state, style.busy)
        right = f"{len(room.tokens):5d} tokens  {self._progress(room)}"
        left_width = width - 6 - len(right) - 2
        question = style.shorten(room.prompt.text, left_width).ljust(left_width)
        if not two and room.text:
            question = style.tail(room.text, left_width).ljust(left_width)
        lines = [f"{room.number:3d} {symbol} {question}  {style.dim(right)}"]
        if two:
            answer = style.tail(room.text, width - 6)
            if room.state == "failed" and room.failures:
                why = list(room.failures.values())[-1]
                answer = style.bad(style.shorten(f"{why.code} ({why.reason})", width - 6))
            elif room.state == "waiting" and room.follows:
                answer = style.dim(f"waits for prompt {room.follows}, whose beginning it shares")
            elif room.state == "opened" and room.computed_pages:
                of = -(-len(room.tokens) // 16)
                answer = style.dim(f"prefill has computed {room.computed_pages} of {of} pages")
            lines.append(f"      {answer}")
        return lines

    def _progress(self, room: Room) -> str:
        total = room.granted_pages
        cells = round(_BAR_CELLS * room.pages / total) if total else 0
        if room.received:
            cells = _BAR_CELLS
        bar = self.style.full * cells + self.style.empty * (_BAR_CELLS - cells)
        pages = f"{room.pages}/{total} pages" if total or room.received else "no grant"
        return f"{bar}  {pages:>12}"

    def answers(self, rooms: Sequence[Room]) -> None:
        """Prints every question with its answer."""
        for room in rooms:
            asked = self.style.shorten(room.prompt.text, self.width - 6)
            if room.follows or len(asked) < len(" ".join(room.prompt.text.split())):
                asked = self._ends(room.prompt.text)
            self.say(f"{room.number:3d}  {self.style.bold(asked)}")
            text = room.text.strip() or "(no answer)"
            more = self.style.dots if room.finish == "length" else ""
            for line in (text + more).splitlines():
                self.say(
                    textwrap.fill(
                        line, self.width - 2, initial_indent=" " * 5, subsequent_indent=" " * 5
                    )
                )
        self.say()

    def _ends(self, text: str) -> str:
        """Beginning and end of a long question, on one line."""
        line = " ".join(text.split())
        half = (self.width - 6 - 5) // 2
        if len(line) <= 2 * half:
            return line
        return f"{line[:half]} {self.style.dots} {line[-half:]}"
