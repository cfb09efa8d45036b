"""Rooms as the engine sees them."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import numpy.typing as npt

from pageferry._checks import check_range, check_text, invalid
from pageferry._convert import States, room_ref, state_indices
from pageferry.agent.v1 import agent_pb2
from pageferry.errors import DeadlineExceeded, RoomFailed, SessionLost
from pageferry.events import Event, PrefixKnown, RoomUpdate
from pageferry.kinds import RoomState
from pageferry.pages import PageRuns

_RUNS_A_COMMAND = 65_536
PageList = PageRuns | Sequence[int] | npt.NDArray[Any]


class CommandSink(Protocol):
    """What a room needs of its session."""

    lock: threading.RLock

    def send(self, commands: Iterable[agent_pb2.EngineCommand], *, urgent: bool = False) -> None:
        """Queues commands."""

    def check_may_block(self) -> None:
        """Raises where waiting would stop the thread that brings the events."""


@dataclass(frozen=True, slots=True)
class RoomResult:
    """How a room ended. Times are in seconds; `since_grant` is known at decode only."""

    state: RoomState
    pages: int
    bytes: int
    elapsed: float
    since_grant: float | None
    transport: str


class Room:
    """One room of a session. Thread-safe.

    `state`, `drained`, `error`, `pages`, `bytes` and the rest change as events come; the pages
    that were named for the room stay in use until `drained` is true.
    """

    def __init__(
        self,
        sink: CommandSink,
        room_id: int,
        attempt: int,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        """Made by `Session.open_send` and `Session.open_receive`."""
        self.room_id = room_id
        self.attempt = attempt
        self.on_event = on_event
        self.state = RoomState.BOOTSTRAPPING
        self.drained = False
        self.error: RoomFailed | None = None
        self.pages = 0
        self.bytes = 0
        self.transport = ""
        self.elapsed = 0.0
        self.since_grant: float | None = None
        self._sink = sink
        self._changed = threading.Condition(sink.lock)

    @property
    def done(self) -> bool:
        """True once the room is terminal; it may not be drained yet."""
        return self.state.terminal

    def wait(self, timeout: float | None = None) -> RoomResult:
        """Waits for the end. Raises RoomFailed, or DeadlineExceeded after `timeout` seconds."""
        self._wait_until(lambda: self.state.terminal, timeout, "end")
        self._raise_if_failed()
        return self.result()

    def wait_drained(self, timeout: float | None = None) -> None:
        """Waits until the room's pages may be reused, however it ended.

        DeadlineExceeded after `timeout` seconds: they may not be reused yet.
        """
        self._wait_until(lambda: self.drained, timeout, "be drained")

    def result(self) -> RoomResult:
        """What is known now."""
        with self._sink.lock:
            return RoomResult(
                self.state, self.pages, self.bytes, self.elapsed, self.since_grant, self.transport
            )

    def abort(self, detail: str = "") -> None:
        """Ends the room before success; `detail` goes to the other side. No-op once it ended."""
        check_text("detail", detail, 256)
        if not self.state.terminal:
            room = room_ref(self.room_id, self.attempt)
            command = agent_pb2.AbortRoomCommand(room=room, detail=detail)
            self._say(agent_pb2.EngineCommand(abort=command))

    def close(self) -> None:
        """Aborts the room if it still runs, else lets the agent forget it. May be called twice."""
        if not self.state.terminal:
            self.abort("closed by the engine")
        elif self.drained:
            command = agent_pb2.CloseRoom(room=room_ref(self.room_id, self.attempt))
            self._say(agent_pb2.EngineCommand(close_room=command))

    def __enter__(self) -> Room:
        """Gives the room."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the room."""
        self.close()

    def __repr__(self) -> str:
        """Id, attempt and state."""
        drained = ", drained" if self.drained else ""
        name = type(self).__name__
        return f"{name}({self.room_id}, attempt {self.attempt}, {self.state.name}{drained})"

    def _say(self, command: agent_pb2.EngineCommand) -> None:
        """Sends what ends a room; a session that has ended has ended its rooms as well."""
        with contextlib.suppress(SessionLost):
            self._sink.send([command], urgent=True)

    def _wait_until(self, ready: Callable[[], bool], timeout: float | None, what: str) -> None:
        self._sink.check_may_block()
        with self._changed:
            if not self._changed.wait_for(ready, timeout):
                raise DeadlineExceeded(f"{self!r} did not {what} within {timeout} s")

    def _raise_if_failed(self) -> None:
        if self.state == RoomState.FAILED:
            stored = self.error or RoomFailed("no reason was given", room_id=self.room_id)
            raise copy.copy(stored) from stored.__cause__

    def _update(
        self,
        message: agent_pb2.RoomEvent,
        error: RoomFailed | None,
        elapsed: float,
        since_grant: float | None,
    ) -> RoomUpdate:
        """Takes an event in; terminal states are final. The lock is held."""
        if not self.state.terminal:
            self.state = RoomState(message.state)
            self.error = error if self.state == RoomState.FAILED else None
            self.pages, self.bytes = message.pages, message.bytes
            self.elapsed, self.since_grant = elapsed, since_grant
            self.transport = message.transport or self.transport
        return self._mark(self.drained or (message.drained and self.state.terminal))

    def _fail(self, error: RoomFailed, *, drained: bool) -> RoomUpdate:
        """Ends the room from this side. The lock is held."""
        if not self.state.terminal:
            self.state, self.error = RoomState.FAILED, error
        return self._mark(self.drained or drained)

    def _mark(self, drained: bool) -> RoomUpdate:
        self.drained = drained
        self._changed.notify_all()
        return RoomUpdate(
            self,
            self.state,
            self.drained,
            self.error,
            self.pages,
            self.bytes,
            self.transport,
            self.elapsed,
            self.since_grant,
        )


class SendRoom(Room):
    """Prefill: a room whose pages are sent from here."""

    def __init__(
        self,
        sink: CommandSink,
        room_id: int,
        attempt: int,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        """Made by `Session.open_send`; attempt 0 becomes the granted one with the grant."""
        super().__init__(sink, room_id, attempt, on_event)
        self.grant: PrefixKnown | None = None
        self.next_position = 0
        self.requested_attempt = attempt

    def wait_granted(self, timeout: float | None = None) -> PrefixKnown:
        """Waits for the decode side's grant, which tells how many pages need not be sent.

        Raises RoomFailed, or DeadlineExceeded after `timeout` seconds.
        """
        self._wait_until(
            lambda: self.grant is not None or self.state.terminal, timeout, "be granted"
        )
        if self.grant is None:
            self._raise_if_failed()
            return PrefixKnown(self, 0, 0)
        return self.grant

    def send_chunk(
        self,
        pages: PageList,
        *,
        first_position: int | None = None,
        last: bool = False,
        aux_slot: int | None = None,
        states: States | None = None,
    ) -> None:
        """Says that `pages`, in order of the prompt, may be read from now on.

        They must not change until the room is drained. `first_position` is the number of pages
        of the prompt in front of them; unset, the chunk follows the one before. `aux_slot` and
        `states` go with the last chunk. A room that ended takes chunks and ignores them, since
        that may happen at any time: `wait` tells.
        """
        runs = PageRuns.of(pages)
        runs.check_distinct()
        position = self.next_position if first_position is None else first_position
        check_range("first_position", position, 0, 1 << 40)
        if aux_slot is not None:
            check_range("aux_slot", aux_slot, 0, (1 << 20) - 1)
        if not last and (aux_slot is not None or states):
            raise invalid("aux_slot and states go with the last chunk", "last", last, True)
        commands = []
        for piece in runs.split(_RUNS_A_COMMAND):
            chunk = agent_pb2.SendChunk(
                room=room_ref(self.room_id, self.attempt),
                first_position=position,
            )
            piece.add_to(chunk)
            position += piece.page_count
            commands.append(agent_pb2.EngineCommand(send_chunk=chunk))
        if last:
            final = commands[-1].send_chunk
            final.last = True
            if aux_slot is not None:
                final.aux_slot = aux_slot
            final.states.extend(state_indices(states))
        if not self.state.terminal:
            self._sink.send(commands)
        self.next_position = position

    def _granted(self, cached_prefix_pages: int, granted_pages: int) -> PrefixKnown:
        """Takes the grant in. The lock is held."""
        self.grant = PrefixKnown(self, cached_prefix_pages, granted_pages)
        self._changed.notify_all()
        return self.grant

    def fail(self, detail: str) -> None:
        """Says that this engine cannot deliver the room; the other side learns `detail`."""
        check_text("detail", detail, 1024)
        if not self.state.terminal:
            room = room_ref(self.room_id, self.attempt)
            command = agent_pb2.FailRoom(room=room, detail=detail)
            self._say(agent_pb2.EngineCommand(fail_room=command))

    def __enter__(self) -> SendRoom:
        """Gives the room."""
        return self


class ReceiveRoom(Room):
    """Decode: a room whose pages are written here."""

    def __enter__(self) -> ReceiveRoom:
        """Gives the room."""
        return self
