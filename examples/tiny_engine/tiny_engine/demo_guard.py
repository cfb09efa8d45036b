"""Tidies up after a demo that was killed: `python demo_guard.py FOLDER RUN`, started by the demo.

Reads process ids from its standard input, one a line. When the input ends with the line "done", the
demo has tidied up by itself. When it just ends, the demo has died: the guard then ends the
processes, the youngest first, and removes the folder and the shared memory of the run.

The kernel's parent-death signal would not do: it comes once for each thread of the dying parent,
and services take a second SIGTERM for a wish to end at once. It needs the standard library only, to
start quickly.
"""

from __future__ import annotations

import contextlib
import glob
import os
import select
import shutil
import signal
import sys

_SECONDS = 5.0


def end(pidfd: int) -> None:
    """SIGTERM, and SIGKILL if that takes too long."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
        if select.select([pidfd], [], [], _SECONDS)[0]:
            return


def main() -> None:
    """Waits for the demo's end, and acts on how it came."""
    folder, run = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pidfds: list[int] = []
    for line in sys.stdin:
        if line == "done\n":
            return
        with contextlib.suppress(OSError, ValueError):
            pidfds.append(os.pidfd_open(int(line)))
    for pidfd in reversed(pidfds):
        end(pidfd)
    shutil.rmtree(folder, ignore_errors=True)
    for path in glob.glob(f"/dev/shm/pageferry.{glob.escape(run)}-*"):
        with contextlib.suppress(OSError):
            os.unlink(path)


if __name__ == "__main__":
    main()
