"""The agent goes, or the session to it: rooms fail at once and are drained by evidence."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pageferry as pf
import pytest
from pageferry.errors import DeadlineExceeded
from pageferry.liveness import AgentProcess

import fake_agent
from conftest import Engine, Resources, eventually, start_engine
from fake_fabric import Fabric

T = 10.0
Agents = tuple[fake_agent.FakeAgent, fake_agent.FakeAgent]


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


def test_nothing_is_left_behind(process: subprocess.Popen[str], tmp_path: Path) -> None:
    def use() -> None:
        engine = start_engine(f"unix:{tmp_path}/p", "p", pf.Role.PREFILL)
        with engine.agent:
            room = engine.session.open_send(1)
            room.abort()
            room.wait_drained(T)
            engine.kv[0] = 1

    use()
    eventually(lambda: Resources.now().threads == 1)
    before = Resources.now()
    for _ in range(8):
        use()
    eventually(lambda: Resources.now() <= before)


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
