"""The bounded queue between engine threads and the stream's writer."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator

from pageferry.agent.v1 import agent_pb2
from pageferry.errors import InvalidArgument, ResourceExhausted, SessionLost

_FRAME_BYTES = 1 << 20
_COMMAND_BYTES = (4 << 20) - 4096
_FRAME_COMMANDS = 512
_Command = agent_pb2.EngineCommand


class Outbox:
    """Commands in order, batched into frames as fast as the stream takes them. Thread-safe.

    Iterating it is the stream's writer: it blocks for the next command and ends with `close`.
    """

    def __init__(self, commands_at_most: int, bytes_at_most: int) -> None:
        """Sets the bounds; a single command may exceed the bytes when the queue is empty."""
        self._commands_at_most = commands_at_most
        self._bytes_at_most = bytes_at_most
        self._bytes = 0
        self._queue: deque[tuple[_Command, int]] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def put(self, commands: Iterable[_Command], *, timeout: float, urgent: bool = False) -> None:
        """Appends `commands`, all or none; urgent ones regardless of the bounds.

        ResourceExhausted: the agent did not take enough within `timeout` seconds. InvalidArgument
        (TOO_LARGE): a command does not fit into a frame. SessionLost: closed.
        """
        sized = [(command, command.ByteSize()) for command in commands]
        for _, size in sized:
            if size > _COMMAND_BYTES:
                metadata = {"field": "command", "value": str(size), "allowed": str(_COMMAND_BYTES)}
                raise InvalidArgument(
                    f"a command of {size} bytes does not fit into a frame",
                    reason="TOO_LARGE",
                    metadata=metadata,
                )
        total = sum(size for _, size in sized)
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._closed and not urgent and not self._room_for(len(sized), total):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ResourceExhausted(
                        "the agent does not take commands as fast as they are made",
                        reason="LIMIT_REACHED",
                        metadata={"limit": "outbox", "value": str(len(self._queue))},
                    )
                self._changed.wait(left)
            if self._closed:
                raise SessionLost("the session has ended")
            self._queue.extend(sized)
            self._bytes += total
            self._changed.notify_all()

    def _room_for(self, count: int, size: int) -> bool:
        if not self._queue:
            return True
        return (
            len(self._queue) + count <= self._commands_at_most
            and self._bytes + size <= self._bytes_at_most
        )

    def close(self) -> None:
        """Ends the writer once it has taken what is queued."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def discard(self) -> None:
        """Ends the writer at once."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._bytes = 0
            self._changed.notify_all()

    def __iter__(self) -> Iterator[agent_pb2.SessionRequest]:
        """The frames, until closed and empty."""
        first = True
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                commands: list[_Command] = []
                size = 0
                # The first frame carries nothing but the opening command.
                at_most = 1 if first else _FRAME_COMMANDS
                while self._queue and len(commands) < at_most:
                    if commands and size + self._queue[0][1] > _FRAME_BYTES:
                        break
                    command, command_size = self._queue.popleft()
                    commands.append(command)
                    size += command_size
                self._bytes -= size
                first = False
                self._changed.notify_all()
            yield agent_pb2.SessionRequest(commands=commands)
