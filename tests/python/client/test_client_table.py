"""What events do to rooms, without any agent."""

import threading
from collections.abc import Iterable

import pageferry as pf
import pytest
from pageferry._table import RoomTable
from pageferry.agent.v1 import agent_pb2
from pageferry.errors import AlreadyExists

S = pf.RoomState
LIVE = (S.BOOTSTRAPPING, S.WAITING_FOR_INPUT, S.TRANSFERRING)


class Sink:
    """A session that goes nowhere."""

    def __init__(self) -> None:
        """Keeps what is sent. Holds its lock, as who changes a table must."""
        self.lock = threading.RLock()
        self.lock.acquire()
        self.sent: list[agent_pb2.EngineCommand] = []

    def send(self, commands: Iterable[agent_pb2.EngineCommand], *, urgent: bool = False) -> None:
        """Keeps it."""
        self.sent.extend(commands)

    def check_may_block(self) -> None:
        """It may."""


@pytest.fixture
def table() -> RoomTable:
    return RoomTable()


def opened(table: RoomTable, room_id: int = 1, attempt: int = 0) -> pf.SendRoom:
    room = pf.SendRoom(Sink(), room_id, attempt, None)
    table.add(room)
    return room


def tell(
    table: RoomTable, state: int, *, attempt: int = 1, drained: bool = False, pages: int = 0
) -> list[pf.Event]:
    ref = agent_pb2.RoomRef(room_id=1, attempt=attempt)
    event = agent_pb2.RoomEvent(room=ref, state=int(state), drained=drained, pages=pages)  # type: ignore[arg-type]
    return table.apply(agent_pb2.AgentEvent(room=event))


def refuse(table: RoomTable, command: str, attempt: int = 0) -> list[pf.Event]:
    ref = agent_pb2.RoomRef(room_id=1, attempt=attempt)
    refused = agent_pb2.CommandRefused(room=ref, command=command)
    return table.apply(agent_pb2.AgentEvent(refused=refused))


@pytest.mark.parametrize("first", list(S)[1:])
@pytest.mark.parametrize("second", list(S)[1:])
@pytest.mark.parametrize("drained", [False, True])
def test_every_pair_of_states(table: RoomTable, first: S, second: S, drained: bool) -> None:
    room = opened(table)
    tell(table, first)
    tell(table, second, drained=drained)
    assert room.state == (first if first.terminal else second)
    assert room.drained == (drained and room.done)
    assert len(table) == (0 if room.drained else 1)


def test_nothing_changes_a_room_that_is_over(table: RoomTable) -> None:
    room = opened(table)
    tell(table, S.SUCCESS, drained=True, pages=3)
    for state in S:
        assert tell(table, state, drained=True, pages=9) == []
    assert (room.state, room.pages, room.error) == (S.SUCCESS, 3, None)


def test_states_that_are_not_known_are_ignored(table: RoomTable) -> None:
    room = opened(table)
    assert tell(table, 17) == tell(table, 0) == []
    assert room.state == S.BOOTSTRAPPING
    assert table.apply(agent_pb2.AgentEvent()) == []


def test_attempt_zero_is_bound_by_the_first_event(table: RoomTable) -> None:
    room = opened(table)
    tell(table, S.BOOTSTRAPPING, attempt=0)
    assert room.attempt == 0
    tell(table, S.WAITING_FOR_INPUT, attempt=3)
    assert room.attempt == 3
    assert tell(table, S.TRANSFERRING, attempt=2) == []
    tell(table, S.TRANSFERRING, attempt=0)
    assert room.state == S.TRANSFERRING
    assert room.requested_attempt == 0


def test_attempts_are_kept_apart(table: RoomTable) -> None:
    old = opened(table)
    tell(table, S.FAILED, attempt=1)
    new = opened(table)
    with pytest.raises(AlreadyExists) as failure:
        opened(table)
    assert failure.value.reason == "DUPLICATE_ROOM"
    tell(table, S.FAILED, attempt=1, drained=True)
    assert (old.drained, new.state, new.attempt) == (True, S.BOOTSTRAPPING, 0)
    tell(table, S.WAITING_FOR_INPUT, attempt=2)
    assert new.attempt == 2


def test_only_a_refused_opening_ends_a_room(table: RoomTable) -> None:
    room = opened(table)
    for command in ("send_chunk", "abort", "fail_room", "close_room"):
        assert [type(event) for event in refuse(table, command)] == [pf.CommandRefused]
    assert not room.done
    refused, update = refuse(table, "open_send")
    assert isinstance(refused, pf.CommandRefused)
    assert isinstance(update, pf.RoomUpdate)
    assert (room.state, room.drained, len(table)) == (S.FAILED, True, 0)


def test_loss_fails_what_is_live_and_drains_nothing(table: RoomTable) -> None:
    live, failed = opened(table, 1), opened(table, 2, 5)
    ref = agent_pb2.RoomRef(room_id=2, attempt=5)
    table.apply(agent_pb2.AgentEvent(room=agent_pb2.RoomEvent(room=ref, state=1)))
    error = failed.error
    (update,) = table.lose(pf.SessionLost("gone"))
    assert isinstance(update, pf.RoomUpdate)
    assert update.room is live
    assert isinstance(live.error, pf.RoomLost)
    assert failed.error is error
    assert not live.drained
    assert len(table.drained(table.rooms())) == 2
    assert live.drained
    assert failed.drained
    assert len(table) == 0


@pytest.mark.parametrize("state", LIVE)
def test_commands_of_a_room(table: RoomTable, state: S) -> None:
    room = opened(table)
    tell(table, state, attempt=4)
    room.send_chunk([1, 2])
    room.fail("x")
    room.close()
    sink = room._sink
    assert isinstance(sink, Sink)
    chunk, fail, abort = sink.sent
    assert (chunk.send_chunk.room.attempt, fail.fail_room.room.attempt) == (4, 4)
    assert abort.abort.room.attempt == 4
    tell(table, S.FAILED, attempt=4)
    room.send_chunk([3])
    room.fail("y")
    room.abort()
    room.close()
    assert len(sink.sent) == 3
    tell(table, S.FAILED, attempt=4, drained=True)
    room.close()
    assert sink.sent[-1].close_room.room.attempt == 4
