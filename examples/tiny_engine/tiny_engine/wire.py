"""JSON lines over a unix socket: how a router speaks to the two engines on its host.

The router sends `Work` (or {"op": "abort", "room": id}); the engine answers with objects that have
"event", mostly "room", and what belongs to the event. See README.md for the table of events.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Message = dict[str, Any]

# A prompt of 8,192 tokens is some 60 kB; nothing is longer.
_LINE_BYTES_AT_MOST = 1 << 20
_SEND_SECONDS = 10
# The kernel's limit for a path in a socket's address, without the final zero.
SOCKET_PATH_BYTES_AT_MOST = 107


class LineSocket:
    """One connected socket that carries JSON lines. Owns the socket.

    `send` is thread-safe; `messages` is for one thread.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, path: Path | str, timeout: float) -> LineSocket:
        """Connects once; reading is bounded by `timeout` s too. Raises OSError."""
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.settimeout(timeout)
            connecting.connect(str(path))
        except BaseException:
            connecting.close()
            raise
        return cls(connecting)

    def send(self, message: Message) -> bool:
        """Sends one message. False: the other side has gone, or takes nothing; `close` follows."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            with self._lock:
                self._socket.sendall(line)
        except OSError:
            self.close()
            return False
        return True

    def bound_sending(self) -> None:
        """Makes `send` give up on a peer that reads nothing for ten seconds.

        An option of the socket, since `settimeout` would bound reading as well.
        """
        timeval = struct.pack("ll", _SEND_SECONDS, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def bound_reading(self, seconds: float | None) -> None:
        """Makes `messages` end where nothing comes for so long; None waits for ever."""
        self._socket.settimeout(seconds)

    def messages(self) -> Iterator[Message]:
        """Every message until the other side ends, or sends what is none."""
        reader = self._socket.makefile("rb")
        with contextlib.suppress(OSError, ValueError), reader:
            while line := reader.readline(_LINE_BYTES_AT_MOST):
                message = json.loads(line)
                if not isinstance(message, dict):
                    return
                yield message

    def close(self) -> None:
        """Ends the connection, also for a thread that reads from it. May be called twice."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class LineServer:
    """Listens on a unix socket; gives what comes to callbacks, on one thread a connection.

    Owns the socket's file, its threads and the connections; a file left by a process that died is
    replaced.
    """

    def __init__(
        self,
        path: Path | str,
        greeting: Message,
        on_message: Callable[[LineSocket, Message], None],
        on_close: Callable[[LineSocket], None],
    ) -> None:
        """Raises OSError where the path is too long or taken by somebody who listens."""
        self.path = str(path)
        self._greeting = greeting
        self._on_message = on_message
        self._on_close = on_close
        self._connections: set[LineSocket] = set()
        self._lock = threading.Lock()
        self._listener = _listen(self.path)
        self._thread = threading.Thread(target=self._accept, name="accept", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            connection = LineSocket(accepted)
            connection.bound_sending()
            with self._lock:
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: LineSocket) -> None:
        if connection.send(self._greeting):
            for message in connection.messages():
                self._on_message(connection, message)
        connection.close()
        with self._lock:
            self._connections.discard(connection)
        self._on_close(connection)

    def close(self) -> None:
        """Stops listening, ends all connections and removes the socket's file."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            LineSocket.connect(path, timeout=1.0).close()
            raise OSError(f"{path}: somebody listens there")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener
