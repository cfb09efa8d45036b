"""Tells whether the process behind a unix socket has ended."""

from __future__ import annotations

import os
import select
import socket
import struct


class AgentProcess:
    """The process that listens on a unix socket, as it was when this was made.

    `gone` answers from evidence, never from a timer: the kernel says that the process has ended,
    or, where its id cannot be seen from here (another pid namespace), that nobody listens on its
    socket any more. Behind TCP nothing can be known: `gone` is always False there.
    Not thread-safe.
    """

    def __init__(self, target: str) -> None:
        """Looks the process up; never fails."""
        self._address = _socket_address(target)
        self._pidfd = -1
        pid = self._peer_pid()
        if pid > 0 and pid != os.getpid():
            try:
                self._pidfd = os.pidfd_open(pid)
            except OSError:
                self._pidfd = -1

    def gone(self) -> bool:
        """True once the process has certainly ended."""
        if self._address is None:
            return False
        if self._pidfd >= 0:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            return bool(poller.poll(0))
        return self._refused()

    def close(self) -> None:
        """Gives the handle back; may be called twice."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _connect(self) -> socket.socket:
        assert self._address is not None
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            probe.settimeout(1.0)
            probe.connect(self._address)
        except BaseException:
            probe.close()
            raise
        return probe

    def _peer_pid(self) -> int:
        if self._address is None:
            return 0
        try:
            with self._connect() as probe:
                size = struct.calcsize("3i")
                credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        except OSError:
            return 0
        pid: int = struct.unpack("3i", credentials)[0]
        return pid

    def _refused(self) -> bool:
        try:
            self._connect().close()
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
        return False


def _socket_address(target: str) -> str | None:
    """The path (or abstract name) of a gRPC target, None where it is no unix socket."""
    if target.startswith("unix-abstract:"):
        return "\0" + target.removeprefix("unix-abstract:")
    if target.startswith("unix://"):
        return target.removeprefix("unix://")
    if target.startswith("unix:"):
        return target.removeprefix("unix:")
    return None
