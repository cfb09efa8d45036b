"""What an engine learns from its agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pageferry.errors import PageferryError, RoomFailed
from pageferry.kinds import AgentState, RoomState

if TYPE_CHECKING:
    from pageferry.rooms import Room


@dataclass(frozen=True, slots=True)
class RoomUpdate:
    """A room changed. `drained`: its pages may be reused. Times are in seconds."""

    room: Room
    state: RoomState
    drained: bool
    error: RoomFailed | None
    pages: int
    bytes: int
    transport: str
    elapsed: float
    since_grant: float | None


@dataclass(frozen=True, slots=True)
class PrefixKnown:
    """Prefill: the grant has come. Decode has `cached_prefix_pages`, and granted what follows."""

    room: Room
    cached_prefix_pages: int
    granted_pages: int


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine at the other end has gone; its rooms fail by updates of their own."""

    engine_id: str
    agent_id: str
    epoch: int
    error: PageferryError | None


@dataclass(frozen=True, slots=True)
class RecomputeRequested:
    """Prefill: compute a room again, and answer with `Session.answer_recompute`."""

    room_id: int
    attempt: int
    request_body: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class RecomputeReply:
    """Decode: the answer to `Session.request_recompute`; `error` is None if it will be sent."""

    room_id: int
    attempt: int
    error: PageferryError | None


@dataclass(frozen=True, slots=True)
class Backpressure:
    """The agent holds more than it likes: open no new rooms while `engaged`."""

    engaged: bool
    limit: str


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """A command was not carried out; `room_id` is -1 where it named no room."""

    room_id: int
    attempt: int
    command: str
    error: PageferryError


@dataclass(frozen=True, slots=True)
class AgentStateChanged:
    """The agent's own state changed."""

    state: AgentState
    agent_id: str
    epoch: int
    error: PageferryError | None


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The last event of a session; `error` is None where it was closed from here."""

    error: PageferryError | None


Event = (
    RoomUpdate
    | PrefixKnown
    | EngineLost
    | RecomputeRequested
    | RecomputeReply
    | Backpressure
    | CommandRefused
    | AgentStateChanged
    | SessionClosed
)
