"""Sessions: events, their loss, and what they leave behind."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pageferry as pf
import pytest
from pageferry.agent.v1 import agent_pb2
from pageferry.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted
from pageferry.liveness import AgentProcess

import conftest
import fake_agent
from conftest import Engine, Resources, eventually, start_engine
from fake_fabric import Fabric

T = 10.0
Agents = tuple[fake_agent.FakeAgent, fake_agent.FakeAgent]


def kinds(events: list[pf.Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_one_loop_with_poll(prefill: Engine, decode: Engine) -> None:
    assert prefill.session.poll() == []
    send = prefill.session.open_send(1)
    decode.session.open_receive(1, "prefill-0", [1])
    seen: list[pf.Event] = []
    while not send.done:
        seen += prefill.session.poll(T)
        if send.grant is not None and send.next_position == 0:
            send.send_chunk([5], last=True)
    assert {"PrefixKnown", "RoomUpdate"} == set(kinds(seen))
    states = [event.state for event in seen if isinstance(event, pf.RoomUpdate)]
    assert states == [
        pf.RoomState.BOOTSTRAPPING,
        pf.RoomState.WAITING_FOR_INPUT,
        pf.RoomState.TRANSFERRING,
        pf.RoomState.SUCCESS,
    ]
    prefill.session.close()
    assert kinds(list(prefill.session.events())) == ["SessionClosed"]
    assert prefill.session.poll(timeout=None) == []


def test_callbacks(agents: Agents) -> None:
    everything: list[pf.Event] = []
    of_room: list[pf.Event] = []
    blocked: list[str] = []
    engine = start_engine(agents[0].target, "p", pf.Role.PREFILL, on_event=everything.append)

    def callback(event: pf.Event) -> None:
        of_room.append(event)
        try:
            room.wait()
        except RuntimeError as error:
            blocked.append(str(error))
        raise ValueError("a callback's error must not end the session")

    with engine.agent:
        room = engine.session.open_send(1, on_event=callback)
        room.abort()
        room.wait_drained(T)
        with pytest.raises(InvalidArgument):
            engine.session.poll()
        engine.session.close()
    assert kinds(of_room) == ["RoomUpdate"] * 3
    assert blocked
    assert kinds(everything) == ["RoomUpdate"] * 3 + ["SessionClosed"]
    assert everything[-1].error is None  # type: ignore[union-attr]


def test_other_events(prefill: Engine, agents: Agents) -> None:
    error = fake_agent.detail(14, "PEER_LOST", "gone")
    ref = agent_pb2.RoomRef(room_id=4, attempt=2)
    agents[0].tell(engine_lost=agent_pb2.EngineLost(engine_id="d", error=error))
    agents[0].tell(backpressure=agent_pb2.Backpressure(engaged=True, limit="rooms"))
    agents[0].tell(recompute_requested=agent_pb2.RecomputeRequested(room=ref, request_body=b"x"))
    agents[0].tell(recompute_reply=agent_pb2.RecomputeReply(room=ref, error=error))
    agents[0].tell(agent_state=agent_pb2.AgentStateEvent(state=99, agent=agents[0].ref()))
    agents[0].tell(room=agent_pb2.RoomEvent(room=ref, state=agent_pb2.ROOM_STATE_FAILED))
    agents[0].tell(refused=agent_pb2.CommandRefused(command="open_send", error=error))
    agents[0].tell(agent_state=agent_pb2.AgentStateEvent(state=4, agent=agents[0].ref()))
    seen: list[pf.Event] = []
    while len(seen) < 7:
        seen += prefill.session.poll(T)
    lost, slow, asked, reply, unknown, refused, draining = seen
    assert lost.error.reason == "PEER_LOST"  # type: ignore[union-attr]
    assert slow == pf.Backpressure(True, "rooms")
    assert asked == pf.RecomputeRequested(4, 2, b"x", "")
    assert reply.error.reason == "PEER_LOST"  # type: ignore[union-attr]
    assert unknown.state == pf.AgentState.UNSPECIFIED  # type: ignore[union-attr]
    assert refused.room_id == -1  # type: ignore[union-attr]
    assert draining.state == pf.AgentState.DRAINING  # type: ignore[union-attr]
    assert prefill.session.agent_state == pf.AgentState.DRAINING


def test_commands_of_the_session(prefill: Engine, agents: Agents) -> None:
    prefill.session.request_recompute(4, "p", attempt=2, request_body=b"x", timeout=1.5)
    prefill.session.answer_recompute(4, attempt=2, accepted=False, detail="no")
    prefill.session.abort(4, detail="enough")
    prefill.session.close_room(4, attempt=1)
    eventually(lambda: len(agents[0].commands) == 4)
    first, second, third, fourth = agents[0].commands
    assert first.request_recompute.timeout.ToMilliseconds() == 1500
    assert second.recompute_result.detail == "no"
    assert third.abort.room.attempt == 0
    assert fourth.close_room.room.attempt == 1


def test_closing_ends_rooms_and_is_idempotent(prefill: Engine, decode: Engine) -> None:
    send = prefill.session.open_send(1)
    receive = decode.session.open_receive(1, "prefill-0", [1])
    send.wait_granted(T)
    prefill.session.close()
    prefill.session.close()
    assert (send.state, send.drained) == (pf.RoomState.FAILED, True)
    with pytest.raises(pf.RoomFailed) as failure:
        receive.wait(T)
    assert failure.value.reason == "PEER_ABORTED"
    assert prefill.session.ended
    send.abort()
    send.close()
    with pytest.raises(pf.SessionLost):
        prefill.session.open_send(2)
    assert prefill.session.live_rooms == 0


def test_interrupt_in_a_wait_closes_cleanly(prefill: Engine) -> None:
    main = threading.main_thread().ident
    assert main is not None
    with pytest.raises(KeyboardInterrupt), prefill.session as session:
        room = session.open_send(1)
        timer = threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGINT))
        timer.start()
        room.wait(T)
    timer.join()
    assert room.drained


def test_unread_events_are_bounded(prefill: Engine, decode: Engine) -> None:
    prefill.session._events_at_most = 3
    decode.session.open_receive(1, "prefill-0", [1])
    rooms = [prefill.session.open_send(number) for number in range(1, 6)]
    with pytest.raises(pf.RoomLost) as failure:
        rooms[-1].wait(T)
    assert failure.value.reason == "SLOW_CONSUMER"
    last = list(prefill.session.events())[-1]
    assert isinstance(last, pf.SessionClosed)
    assert last.error is not None
    assert last.error.reason == "SLOW_CONSUMER"


def test_an_agent_that_takes_no_commands(prefill: Engine, agents: Agents, fabric: Fabric) -> None:
    prefill.session._send_timeout = 0.05
    body = b"x" * (1 << 20)
    with fabric.lock, pytest.raises(ResourceExhausted) as failure:
        while True:
            prefill.session.request_recompute(4, "p", attempt=2, request_body=body)
    assert failure.value.metadata["limit"] == "outbox"


def test_a_session_that_is_not_answered(agents: Agents, fabric: Fabric) -> None:
    with pf.Agent.connect(agents[0].target) as agent:
        agent.create_pool("kv", conftest.POOL_BYTES)
        agent.register_engine("p", pf.Role.PREFILL, conftest.profile())
        agents[0].tell = lambda **_: None  # type: ignore[method-assign]
        with pytest.raises(DeadlineExceeded):
            agent.open_session("p", timeout=0.1)


def test_nothing_is_left_behind(agents: Agents) -> None:
    def use() -> None:
        engine = start_engine(agents[0].target, "p", pf.Role.PREFILL)
        with engine.agent:
            engine.session.open_send(1).abort()
            engine.kv[0] = 1
        eventually(lambda: agents[0].outbox is None)

    use()
    eventually(lambda: "pageferry-session" not in {t.name for t in threading.enumerate()})
    before = Resources.now()
    for _ in range(8):
        use()
    eventually(lambda: Resources.now() <= before)


def test_drain(prefill: Engine) -> None:
    room = prefill.session.open_send(1)
    room.abort()
    room.wait_drained(T)
    assert prefill.agent.drain(timeout=0) == (1, 0)


# --- the agent goes ---


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A pair of fake agents in a process of their own."""
    script = [sys.executable, fake_agent.__file__, str(tmp_path / "p"), str(tmp_path / "d")]
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin"}
    child = subprocess.Popen(
        script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    yield child
    child.kill()
    child.communicate()
    for path in Path("/dev/shm").glob(f"pageferry-fake-{child.pid}-*"):
        path.unlink()


def test_a_killed_agent(process: subprocess.Popen[str], tmp_path: Path) -> None:
    prefill = start_engine(f"unix:{tmp_path}/p", "prefill-0", pf.Role.PREFILL)
    decode = start_engine(f"unix:{tmp_path}/d", "decode-0", pf.Role.DECODE, events=True)
    with prefill.agent, decode.agent:
        send = prefill.session.open_send(1)
        receive = decode.session.open_receive(1, "prefill-0", [1])
        send.wait_granted(T)
        process.kill()
        for room in (send, receive):
            with pytest.raises(pf.RoomLost) as failure:
                room.wait(T)
            assert failure.value.code.name == "UNAVAILABLE"
            assert isinstance(failure.value, pf.SessionLost)
            room.wait_drained(T)
        assert prefill.pool.header().generation == 2
        assert decode.pool.header().generation == 1
        with pytest.raises(pf.SessionLost):
            send.send_chunk([1])
            prefill.session.open_send(2)
        last = list(decode.session.events())[-1]
        assert isinstance(last, pf.SessionClosed)
        assert isinstance(last.error, pf.SessionLost)


def test_a_stopped_agent_is_not_a_dead_one(process: subprocess.Popen[str], tmp_path: Path) -> None:
    engine = start_engine(f"unix:{tmp_path}/p", "prefill-0", pf.Role.PREFILL)
    with engine.agent:
        watched = AgentProcess(engine.agent.target)
        room = engine.session.open_send(1)
        process.send_signal(signal.SIGSTOP)
        engine.session._call.cancel()
        with pytest.raises(pf.RoomLost):
            room.wait(T)
        assert not watched.gone()
        assert not room.drained
        assert engine.pool.header().generation == 1
        process.send_signal(signal.SIGCONT)
        room.wait_drained(T)
        assert engine.pool.header().generation == 1
        process.kill()
        eventually(watched.gone)
        watched.close()


def test_a_session_that_breaks_is_asked_about(
    prefill: Engine, decode: Engine, fabric: Fabric
) -> None:
    fabric.hold_drained = True
    room = decode.session.open_receive(1, "prefill-0", [1])
    prefill.session.open_send(1).wait_granted(T)
    decode.session._call.cancel()
    with pytest.raises(pf.RoomLost):
        room.wait(T)
    with pytest.raises(DeadlineExceeded):
        room.wait_drained(0.05)
    fabric.resume()
    room.wait_drained(T)
    assert decode.pool.header().generation == 1


def test_a_session_that_the_agent_ends(prefill: Engine, agents: Agents) -> None:
    room = prefill.session.open_send(1)
    assert agents[0].outbox is not None
    agents[0].outbox.put(None)
    with pytest.raises(pf.RoomLost):
        room.wait(T)
    room.wait_drained(T)
    again = prefill.agent.open_session("prefill-0")
    again.open_send(1).abort()


def test_a_socket_without_listener_is_gone(tmp_path: Path, fabric: Fabric) -> None:
    fake = fake_agent.FakeAgent(fabric, tmp_path / "a", "a")
    process = AgentProcess(fake.target)
    assert not process.gone()
    fake.stop()
    assert process.gone()
    assert not AgentProcess("127.0.0.1:1").gone()
    process.close()
    process.close()
