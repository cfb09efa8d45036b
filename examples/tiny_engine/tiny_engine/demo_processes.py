"""Processes of the demo: started, watched, and ended whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
_GUARD = Path(__file__).with_name("demo_guard.py")
_LOG_LINES = 15
_POLL_SECONDS = 0.02


class DemoError(RuntimeError):
    """The demo cannot go on; the text is for its user."""


class Interrupted(BaseException):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


class Signals:
    """Turns SIGINT, SIGTERM and SIGHUP into `Interrupted`: once, and only within `exposed`.

    Elsewhere the signal waits for the next `exposed`, so that cleaning up is never cut short. For
    the main thread.
    """

    def __init__(self) -> None:
        self._exposed = 0
        self._pending = 0
        self._raised = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._take)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._pending = number
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self._pending and self._exposed > 0 and not self._raised:
            self._raised = True
            raise Interrupted(self._pending)

    @contextlib.contextmanager
    def exposed(self) -> Iterator[None]:
        """For what may be left at any moment."""
        self._exposed += 1
        try:
            self._raise_if_due()
            yield
        finally:
            self._exposed -= 1

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """Within `exposed`: for steps that must be whole, as starting a process and noting it."""
        exposed, self._exposed = self._exposed, 0
        try:
            yield
        finally:
            self._exposed = exposed
        self._raise_if_due()


@dataclass
class Child:
    """One process, its log, and whether its end is expected."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    killed: bool = False

    def last_words(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-_LOG_LINES:]) or "    (it wrote nothing)"


class Processes:
    """The demo's child processes. Owns them; logs go to `folder`. For the main thread.

    Each is in a process group of its own, so that a terminal's Ctrl-C reaches the demo only. If the
    demo itself is killed, a guard ends them; see `demo_guard`.
    """

    def __init__(self, folder: Path, run: str, signals: Signals) -> None:
        """Starts the guard; `run` is in the names of the run's shared memory."""
        self._folder = folder
        self._signals = signals
        self._children: dict[str, Child] = {}
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), str(folder), run],
            stdin=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(f"{line}\n")
            self._guard.stdin.flush()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts one. Raises DemoError where there is no such program."""
        log = self._folder / f"{name.replace(' ', '-')}.log"
        with self._signals.shielded(), open(log, "ab") as out:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env={**os.environ, **environment},
                    process_group=0,
                )
            except OSError as error:
                raise DemoError(f"cannot start {name}: {error}") from error
            self._tell_guard(str(process.pid))
            self._children[name] = Child(name, process, log)

    def check(self) -> None:
        """Raises DemoError, with its last words, where one has ended by itself."""
        for child in self._children.values():
            status = child.process.poll()
            if status is not None and not child.killed:
                how = f"signal {-status}" if status < 0 else f"status {status}"
                words = child.last_words()
                raise DemoError(f"the {child.name} has ended ({how}). Its log ends:\n{words}")

    def wait_for(self, what: str, ready: Callable[[], T | None], seconds: float, of: str) -> T:
        """Waits for something that the process `of` does. Raises DemoError if it does not come."""
        deadline = time.monotonic() + seconds
        while (result := ready()) is None:
            self.check()
            if time.monotonic() > deadline:
                words = self._children[of].last_words()
                raise DemoError(f"waited {seconds:.0f} s for {what}. The {of}'s log ends:\n{words}")
            time.sleep(_POLL_SECONDS)
        return result

    def kill(self, name: str) -> int:
        """kill -9, on purpose; returns the process's id."""
        child = self._children[name]
        child.killed = True
        child.process.kill()
        child.process.wait()
        return child.process.pid

    def stop(self, name: str, seconds: float = 10.0) -> str | None:
        """Ends one by SIGTERM, or by SIGKILL if that takes too long; returns what went wrong."""
        child = self._children.pop(name, None)
        if child is None or child.process.poll() is not None:
            return None
        child.process.terminate()
        try:
            child.process.wait(seconds)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
            return f"the {name} did not end within {seconds:.0f} s of SIGTERM and was killed"
        status = child.process.returncode
        return f"the {name} ended with status {status}" if status else None

    def close(self) -> None:
        """Lets the guard go. Everything is stopped, or is to go on."""
        self._tell_guard("done")
        self._guard.communicate()
