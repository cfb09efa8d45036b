"""Sessions: events, their loss, and what they leave behind."""

import signal
import threading

import pageferry as pf
import pytest
from pageferry.agent.v1 import agent_pb2
from pageferry.errors import DeadlineExceeded, InvalidArgument, ResourceExhausted

import conftest
import fake_agent
from conftest import Engine, eventually, start_engine
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


def test_drain(prefill: Engine) -> None:
    room = prefill.session.open_send(1)
    room.abort()
    room.wait_drained(T)
    assert prefill.agent.drain(timeout=0) == (1, 0)
