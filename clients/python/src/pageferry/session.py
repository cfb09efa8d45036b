"""The session of an engine with its agent: rooms and events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from pageferry._checks import (
    check_name,
    check_range,
    check_room,
    check_text,
    check_timeout,
    invalid,
)
from pageferry._convert import States, duration, room_ref, state_indices
from pageferry._stream import SessionStream
from pageferry.agent.v1 import agent_pb2
from pageferry.errors import InvalidArgument
from pageferry.events import Event
from pageferry.pages import PageRuns
from pageferry.rooms import PageList, ReceiveRoom, SendRoom

_Command = agent_pb2.EngineCommand
_DAY = 86_400.0


class Session(SessionStream):
    """Carries an engine's rooms to and from its agent. Thread-safe.

    Made by `Agent.open_session`. Learn what happens by waiting on rooms, by callbacks, or by
    `poll` in a loop of your own. Callbacks run on the session's one thread, in order, and must
    not wait for rooms.

    When the session is lost, every live room fails at once with RoomLost. A failed room becomes
    drained by evidence only: the agent says so when it can be reached again, or its process has
    ended (then the seals of this engine's pools are broken first).
    """

    def open_send(
        self,
        room_id: int,
        *,
        attempt: int = 0,
        timeout: float | None = None,
        priority: int = 0,
        capability: bytes = b"",
        traceparent: str = "",
        tracestate: str = "",
        dummy: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> SendRoom:
        """Prefill: says that a room will be sent. May come before or after the grant.

        Attempt 0 is "the one that is granted"; `timeout` is the room's own, 300 s where unset.
        AlreadyExists while the same room and attempt is not over here. What the agent has against
        the room fails it.
        """
        check_room(room_id, attempt, 0)
        _check_common(timeout, priority, capability)
        message = agent_pb2.OpenSend(
            room=room_ref(room_id, attempt),
            timeout=duration(timeout),
            priority=priority,
            capability=capability,
            trace=_trace(traceparent, tracestate),
            dummy=dummy,
        )
        room = SendRoom(self, room_id, attempt, on_event)
        self._open(room, _Command(open_send=message))
        return room

    def open_receive(
        self,
        room_id: int,
        prefill_engine_id: str,
        pages: PageList,
        *,
        attempt: int = 1,
        aux_slot: int | None = None,
        states: States | None = None,
        cached_prefix_pages: int = 0,
        prefill_dp_rank: int | None = None,
        timeout: float | None = None,
        priority: int = 0,
        capability: bytes = b"",
        traceparent: str = "",
        tracestate: str = "",
        checksum: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> ReceiveRoom:
        """Decode: lets `pages` (in order of the prompt, behind the cached prefix) be written.

        They must not be used for anything else until the room is drained. No pages are a full
        prefix hit. `timeout` is the room's own, 300 s where unset. Errors as `open_send`.
        """
        check_room(room_id, attempt, 1)
        _check_common(timeout, priority, capability)
        check_name("prefill_engine_id", prefill_engine_id, 128)
        check_range("cached_prefix_pages", cached_prefix_pages, 0, 1 << 40)
        if aux_slot is not None:
            check_range("aux_slot", aux_slot, 0, (1 << 20) - 1)
        if prefill_dp_rank is not None:
            check_range("prefill_dp_rank", prefill_dp_rank, 0, 65_535)
        runs = PageRuns.of(pages)
        runs.check_distinct()
        message = agent_pb2.OpenReceive(
            room=room_ref(room_id, attempt),
            prefill_engine_id=prefill_engine_id,
            aux_slot=aux_slot,
            states=state_indices(states),
            cached_prefix_pages=cached_prefix_pages,
            prefill_dp_rank=prefill_dp_rank,
            timeout=duration(timeout),
            priority=priority,
            capability=capability,
            trace=_trace(traceparent, tracestate),
            checksum=checksum,
        )
        runs.add_to(message)
        room = ReceiveRoom(self, room_id, attempt, on_event)
        self._open(room, _Command(open_receive=message))
        return room

    def abort(self, room_id: int, *, attempt: int = 0, detail: str = "") -> None:
        """Aborts a room by its id; attempt 0 means any. `Room.abort` does it for one at hand."""
        check_room(room_id, attempt, 0)
        check_text("detail", detail, 256)
        command = agent_pb2.AbortRoomCommand(room=room_ref(room_id, attempt), detail=detail)
        self.send([_Command(abort=command)], urgent=True)

    def close_room(self, room_id: int, *, attempt: int) -> None:
        """Lets the agent forget a room that is terminal and drained. Optional."""
        check_room(room_id, attempt, 0)
        command = agent_pb2.CloseRoom(room=room_ref(room_id, attempt))
        self.send([_Command(close_room=command)], urgent=True)

    def request_recompute(
        self,
        room_id: int,
        prefill_engine_id: str,
        *,
        attempt: int,
        request_body: bytes = b"",
        content_type: str = "",
        prefill_dp_rank: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Decode: asks for a room again under a new attempt; answered by a RecomputeReply."""
        check_room(room_id, attempt, 1)
        check_name("prefill_engine_id", prefill_engine_id, 128)
        check_range("request_body bytes", len(request_body), 0, 1 << 20)
        check_text("content_type", content_type, 128)
        check_timeout("timeout", timeout, 0.001, _DAY)
        command = agent_pb2.RequestRecompute(
            room=room_ref(room_id, attempt),
            prefill_engine_id=prefill_engine_id,
            request_body=request_body,
            content_type=content_type,
            prefill_dp_rank=prefill_dp_rank,
            timeout=duration(timeout),
        )
        self.send([_Command(request_recompute=command)])

    def answer_recompute(
        self, room_id: int, *, attempt: int, accepted: bool, detail: str = ""
    ) -> None:
        """Prefill: answers a RecomputeRequested."""
        check_room(room_id, attempt, 1)
        check_text("detail", detail, 1024)
        room = room_ref(room_id, attempt)
        result = agent_pb2.RecomputeResult(room=room, accepted=accepted, detail=detail)
        self.send([_Command(recompute_result=result)])

    @property
    def live_rooms(self) -> int:
        """Rooms that are not terminal and drained."""
        with self.lock:
            return len(self._table)

    @property
    def ended(self) -> bool:
        """True once the session was lost or closed."""
        with self.lock:
            return self._lost is not None

    def poll(self, timeout: float | None = 0.0) -> list[Event]:
        """Takes all events that have come; waits up to `timeout` s for the first (None: ever).

        For a session opened with `events=True`. Returns an empty list after the last event, which
        is SessionClosed.
        """
        if not self._events_at_most:
            raise InvalidArgument("poll needs open_session(..., events=True)")
        self.check_may_block()
        with self._changed:
            if timeout is None or timeout > 0:
                self._changed.wait_for(lambda: self._events or self._over, timeout)
            taken = list(self._events)
            self._events.clear()
        return taken

    def events(self) -> Iterator[Event]:
        """Iterates over the events, waiting for each, to the end of the session."""
        while taken := self.poll(timeout=None):
            yield from taken

    def __enter__(self) -> Session:
        """Gives the session."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the session."""
        self.close()


def _trace(traceparent: str, tracestate: str) -> agent_pb2.TraceContext | None:
    check_text("traceparent", traceparent, 128)
    check_text("tracestate", tracestate, 512)
    if not traceparent:
        return None
    return agent_pb2.TraceContext(traceparent=traceparent, tracestate=tracestate)


def _check_common(timeout: float | None, priority: int, capability: bytes) -> None:
    check_timeout("timeout", timeout, 0.001, _DAY)
    check_range("priority", priority, -100, 100)
    if len(capability) > 64:
        raise invalid("capability is longer than 64 bytes", "capability", len(capability), 64)
