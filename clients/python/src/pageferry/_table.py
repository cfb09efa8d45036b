"""The rooms of a session, and what events do to them. No I/O, no thread, no clock."""

from __future__ import annotations

import logging

from pageferry import events
from pageferry._convert import seconds
from pageferry.agent.v1 import agent_pb2
from pageferry.errors import (
    AlreadyExists,
    RoomFailed,
    RoomLost,
    SessionLost,
    from_detail,
    room_failed,
)
from pageferry.kinds import AgentState, RoomState
from pageferry.rooms import Room, SendRoom

_log = logging.getLogger("pageferry")
_Key = tuple[int, int]


class RoomTable:
    """Rooms that are not over, that is, not terminal and drained. The caller serialises.

    A room that is sent with attempt 0 is found by the attempt of its first event from then on.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._rooms: dict[_Key, Room] = {}

    def __len__(self) -> int:
        """Rooms that are not over."""
        return len(self._rooms)

    def rooms(self) -> list[Room]:
        """Rooms that are not over."""
        return list(self._rooms.values())

    def add(self, room: Room) -> None:
        """Takes a room in. AlreadyExists where one of its id and attempt is not over."""
        if (room.room_id, room.attempt) in self._rooms:
            raise AlreadyExists(
                f"room {room.room_id} attempt {room.attempt} is not over",
                reason="DUPLICATE_ROOM",
                metadata={"room_id": str(room.room_id), "attempt": str(room.attempt)},
            )
        self._rooms[room.room_id, room.attempt] = room

    def remove(self, room: Room) -> None:
        """Forgets a room that was never opened, or is over."""
        if self._rooms.get((room.room_id, room.attempt)) is room:
            del self._rooms[room.room_id, room.attempt]

    def _find(self, ref: agent_pb2.RoomRef) -> Room | None:
        room = self._rooms.get((ref.room_id, ref.attempt))
        if room is None and ref.attempt > 0:
            room = self._rooms.pop((ref.room_id, 0), None)
            if room is not None:
                room.attempt = ref.attempt
                self._rooms[ref.room_id, ref.attempt] = room
        if room is None and ref.attempt == 0:
            # An agent may go on to name a room as it was opened.
            sent = [r for r in self._rooms.values() if r.room_id == ref.room_id]
            room = next((r for r in sent if getattr(r, "requested_attempt", 1) == 0), None)
        return room

    def apply(self, message: agent_pb2.AgentEvent) -> list[events.Event]:
        """Takes one event in and answers what the engine is to learn."""
        match message.WhichOneof("event"):
            case "room":
                return self._room(message.room)
            case "prefix_known":
                return self._prefix_known(message.prefix_known)
            case "refused":
                return self._refused(message.refused)
            case "engine_lost":
                lost = message.engine_lost
                error = from_detail(lost.error) if lost.HasField("error") else None
                return [
                    events.EngineLost(lost.engine_id, lost.agent.agent_id, lost.agent.epoch, error)
                ]
            case "recompute_requested":
                asked = message.recompute_requested
                ref = asked.room
                return [
                    events.RecomputeRequested(
                        ref.room_id, ref.attempt, asked.request_body, asked.content_type
                    )
                ]
            case "recompute_reply":
                reply = message.recompute_reply
                error = from_detail(reply.error) if reply.HasField("error") else None
                return [events.RecomputeReply(reply.room.room_id, reply.room.attempt, error)]
            case "backpressure":
                return [
                    events.Backpressure(message.backpressure.engaged, message.backpressure.limit)
                ]
            case "agent_state":
                state = message.agent_state
                error = from_detail(state.error) if state.HasField("error") else None
                return [
                    events.AgentStateChanged(
                        agent_state(state.state), state.agent.agent_id, state.agent.epoch, error
                    )
                ]
            case kind:
                _log.debug("event %s is not known here", kind)
                return []

    def _room(self, message: agent_pb2.RoomEvent) -> list[events.Event]:
        room = self._find(message.room)
        if room is None or not 0 < message.state <= RoomState.SUCCESS:
            ref = message.room
            _log.debug("event of unknown room %d attempt %d", ref.room_id, ref.attempt)
            return []
        error = None
        if int(message.state) == RoomState.FAILED:
            error = room_failed(message.error, room.room_id, room.attempt)
        grant = seconds(message.since_grant) if message.HasField("since_grant") else None
        update = room._update(message, error, seconds(message.elapsed), grant)
        self._forget_if_over(room)
        return [update]

    def _prefix_known(self, message: agent_pb2.PrefixKnown) -> list[events.Event]:
        room = self._find(message.room)
        if not isinstance(room, SendRoom):
            return []
        return [room._granted(message.cached_prefix_pages, message.granted_pages)]

    def _refused(self, message: agent_pb2.CommandRefused) -> list[events.Event]:
        error = from_detail(message.error)
        ref = message.room
        room = self._rooms.get((ref.room_id, ref.attempt))
        room_id = ref.room_id if message.HasField("room") else -1
        result: list[events.Event] = [
            events.CommandRefused(room_id, ref.attempt, message.command, error)
        ]
        if room is not None and message.command in ("open_send", "open_receive"):
            # The agent has no such room, so nothing of it can move. Other commands prove nothing:
            # they may have been meant for an earlier room of the same id.
            failure = room_failed(message.error, room.room_id, room.attempt)
            result.append(room._fail(failure, drained=True))
            self._forget_if_over(room)
        else:
            # An abort may well cross the end of its room.
            harmless = message.command in ("abort", "close_room")
            level = logging.DEBUG if harmless else logging.WARNING
            _log.log(level, "command %s refused: %s", message.command, error)
        return result

    def lose(self, cause: SessionLost) -> list[events.Event]:
        """Fails every live room; they are not drained by that."""
        result: list[events.Event] = []
        for room in self.rooms():
            if not room.state.terminal:
                error = RoomLost(
                    cause.message,
                    code=cause.code,
                    reason=cause.reason,
                    metadata=cause.metadata,
                    room_id=room.room_id,
                    attempt=room.attempt,
                )
                error.__cause__ = cause
                result.append(room._fail(error, drained=False))
        return result

    def drained(self, rooms: list[Room]) -> list[events.Event]:
        """Marks failed rooms as drained and forgets them."""
        result: list[events.Event] = []
        for room in rooms:
            failure = room.error or RoomFailed("session lost", room_id=room.room_id)
            result.append(room._fail(failure, drained=True))
            self._forget_if_over(room)
        return result

    def _forget_if_over(self, room: Room) -> None:
        if room.state.terminal and room.drained:
            self.remove(room)


def agent_state(number: int) -> AgentState:
    """The state; UNSPECIFIED for one that is newer than this library."""
    return AgentState(number) if number in set(AgentState) else AgentState.UNSPECIFIED
