"""pageferry-agent as a process: its ports, its end, and what a kill leaves behind."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import socket
import stat
import subprocess
import time
import urllib.error
import urllib.request

import grpc
import pageferry as pf
import pytest
from cluster import BIN_DIR, Program, cluster, wait_until
from engines import Engine, engine_pair
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

WAIT = 60.0


def fetch(program: Program, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{program.ports['metrics']}{path}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(program: Program, pattern: str) -> float:
    """The sum of all samples whose name and labels match."""
    lines = fetch(program, "/metrics")[1].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(pattern, line))


def test_i14_ports_health_reflection_and_metrics() -> None:
    with cluster() as running, engine_pair(running) as (prefill, decode):
        agent = running.programs[-1]
        assert agent.ports["engine"] == running.target("decode")
        path = running.folder / "decode.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with grpc.insecure_channel(f"127.0.0.1:{agent.ports['health']}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with grpc.insecure_channel(running.target("decode")) as channel:
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            ask = reflection_pb2.ServerReflectionRequest(list_services="")
            names = {
                service.name
                for reply in reflection.ServerReflectionInfo(iter([ask]), timeout=10)
                for service in reply.list_services_response.service
            }
            assert "pageferry.agent.v1.TransferAgent" in names
        run_room(prefill, decode, 3)
        assert fetch(agent, "/healthz")[0] == 200
        assert fetch(agent, "/readyz")[0] == 200
        assert fetch(agent, "/nothing")[0] == 404
        # The way in use is visible (I14), in metrics and to who asks the agent.
        assert metric(agent, r'pageferry_agent_.*transport="local"') > 0
        assert [session.transport for session in decode.agent.info().sessions] == ["local"]
        promtool = shutil.which("promtool")
        assert promtool, "promtool is in the package prometheus, which ./dev setup installs"
        text = fetch(agent, "/metrics")[1]
        check = subprocess.run([promtool, "check", "metrics"], input=text.encode(), timeout=30)
        assert check.returncode == 0
        ids = (running.agent_id("prefill"), 'room="', 'engine="', 'agent="', 'peer="')
        assert not [name for name in ids if name in text], "no ids as labels"


@pytest.mark.skipif(shutil.which("grpcurl") is None, reason="no grpcurl")
def test_grpcurl() -> None:
    with cluster() as running:
        agent = running.agent("prefill")

        def grpcurl(*arguments: str) -> str:
            command = ["grpcurl", "-plaintext", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
            assert done.returncode == 0, done.stderr
            return done.stdout

        socket_path = agent.ports["engine"]
        assert "pageferry.agent.v1.TransferAgent" in grpcurl(socket_path, "list")
        assert "AGENT_STATE_IDLE" in grpcurl(
            socket_path, "pageferry.agent.v1.TransferAgent/GetAgent"
        )
        assert "SERVING" in grpcurl(socket_path, "grpc.health.v1.Health/Check")


def test_sigterm_leaves_nothing_and_exits_with_0() -> None:
    with cluster() as running:
        agent = running.agent("decode")
        client = pf.Agent.connect(running.target("decode"))
        with client:
            engine = Engine(client, "decode", pf.Role.DECODE, pages=8)
            assert len(running.shared_memory()) == 1
            engine.close()
        assert agent.stop() == 0
        assert running.shared_memory() == []
        assert not (running.folder / "decode.sock").exists()


def test_kill_then_start_adopts_the_pool_by_name() -> None:
    with cluster() as running:
        agent = running.agent("decode")
        with pf.Agent.connect(running.target("decode")) as client:
            Engine(client, "decode", pf.Role.DECODE, pages=8).fill(1, [2])
            epoch = client.info().epoch
            agent.kill()
            files = running.shared_memory()
            assert len(files) == 1, "the engine's cache outlives its agent"
        agent.start()  # the socket of the killed one is stale: it is replaced
        with pf.Agent.connect(running.target("decode")) as client:
            size = (pathlib.Path("/dev/shm") / files[0]).stat().st_size - (2 << 20)
            pool = client.create_pool("kv", size)
            assert pool.adopted
            assert (pool.data != 0xC5).any(), "what the engine wrote is still there"
            client.release_pool(pool)
            # The same agent id at the same cell, but a younger incarnation: a higher epoch.
            engine = Engine(client, "decode", pf.Role.DECODE, pages=8)
            assert client.info().epoch > epoch
            engine.close()


def test_orphaned_pools_go_after_the_grace_time() -> None:
    with cluster() as running:
        agent = running.agent("decode", "--pool-grace=1s")
        with pf.Agent.connect(running.target("decode")) as client:
            client.create_pool("kv", 1 << 20)
            agent.kill()
        assert len(running.shared_memory()) == 1
        agent.start()
        wait_until("reaping of the orphan", lambda: running.shared_memory() == [])


@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_killed_agent_ends_the_other_sides_rooms_in_time(victim: str) -> None:
    """I4, I13: 3 s of silence at most, and 1 s to tell."""
    with cluster() as running, engine_pair(running) as (prefill, decode):
        sending = prefill.session.open_send(9)
        receiving = decode.session.open_receive(9, "prefill", [1, 2], aux_slot=0)
        sending.wait_granted(WAIT)
        names = [program.name for program in running.programs]
        running.programs[names.index(victim)].kill()
        killed = time.monotonic()
        survivor = receiving if victim == "prefill" else sending
        with pytest.raises(pf.RoomFailed) as failure:
            survivor.wait(WAIT)
        assert time.monotonic() - killed < 4.0
        assert failure.value.reason == "PEER_LOST"
        survivor.wait_drained(WAIT)


def test_i13_stopped_agent_is_found_by_silence() -> None:
    """I13: stopped, not dead: no connection breaks."""
    with cluster() as running, engine_pair(running) as (prefill, decode):
        sending = prefill.session.open_send(9)
        receiving = decode.session.open_receive(9, "prefill", [1, 2], aux_slot=0)
        sending.wait_granted(WAIT)
        process = running.programs[1].process
        assert process is not None
        os.kill(process.pid, 19)
        try:
            stopped = time.monotonic()
            with pytest.raises(pf.RoomFailed) as failure:
                receiving.wait(WAIT)
            assert time.monotonic() - stopped < 4.0
            assert failure.value.reason == "PEER_LOST"
        finally:
            os.kill(process.pid, 18)


def test_i11_bootstrap_outage_fails_no_room() -> None:
    """I11: between agents that know each other, also a room that begins in the outage."""
    with cluster() as running, engine_pair(running) as (prefill, decode):
        run_room(prefill, decode, 1)
        running.bootstrap.kill()
        sending = prefill.session.open_send(2)
        receiving = decode.session.open_receive(2, "prefill", [1], aux_slot=0)
        sending.send_chunk([2], first_position=0, last=True, aux_slot=0)
        assert receiving.wait(WAIT).pages == 1
        sending.wait(WAIT)
        epoch = decode.agent.info().epoch
        running.bootstrap.command += ["--listen", running.bootstrap_target]
        running.bootstrap.start()
        with pf.Bootstrap.connect(running.bootstrap_target) as bootstrap:
            wait_until("both engines back", lambda: count_ready(bootstrap) == 2, 40)
        assert decode.agent.info().epoch == epoch, "a live agent keeps its epoch"
        run_room(prefill, decode, 3)


def count_ready(bootstrap: pf.Bootstrap) -> int:
    try:
        return sum(engine.ready for engine in bootstrap.list_engines())
    except pf.PageferryError:
        return 0


def run_room(prefill: Engine, decode: Engine, room: int) -> None:
    with (
        prefill.session.open_send(room) as sending,
        decode.session.open_receive(room, "prefill", [1], aux_slot=0) as receiving,
    ):
        sending.send_chunk([2], first_position=0, last=True, aux_slot=0)
        receiving.wait(WAIT)
        sending.wait(WAIT)


def test_killed_engine_aborts_its_rooms() -> None:
    with cluster() as running, engine_pair(running) as (prefill, decode):
        receiving = decode.session.open_receive(9, "prefill", [1, 2], aux_slot=0)
        sending = prefill.session.open_send(9)
        sending.wait_granted(WAIT)
        prefill.session._call.cancel()  # as the kernel closes the socket of a killed engine
        with pytest.raises(pf.RoomFailed) as failure:
            receiving.wait(WAIT)
        assert failure.value.reason == "ENGINE_LOST"
        receiving.wait_drained(WAIT)


def run_to_end(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN_DIR / "pageferry-agent"), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_bad_flags_are_named_together() -> None:
    done = run_to_end("--pool-grace", "soon", "--max-rooms", "-1")
    assert done.returncode == 2
    for part in ("--pool-grace", "soon", "--max-rooms", "-1"):
        assert part in done.stderr
    done = run_to_end("--transports", "local,pigeon", "--bootstrap", "127.0.0.1:1")
    assert done.returncode == 2
    assert "pigeon" in done.stderr


def test_other_hosts_are_refused_without_insecure(tmp_path: pathlib.Path) -> None:
    done = run_to_end(
        f"--engine-listen=unix:{tmp_path}/a.sock",
        "--peer-listen=0.0.0.0:0",
        "--bootstrap=127.0.0.1:1",
    )
    assert done.returncode != 0
    assert "--insecure" in done.stderr


def test_taken_port_and_taken_socket_are_errors() -> None:
    with cluster() as running, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_to_end(
            f"--engine-listen=unix:{running.folder}/b.sock",
            f"--peer-listen=127.0.0.1:{port}",
            f"--bootstrap={running.bootstrap_target}",
        )
        assert done.returncode not in (0, -9)
        assert str(port) in done.stderr
        running.agent("decode")
        done = run_to_end(
            f"--engine-listen={running.target('decode')}",
            f"--bootstrap={running.bootstrap_target}",
        )
        assert done.returncode not in (0, -9)
        assert "decode.sock" in done.stderr
        assert (running.folder / "decode.sock").exists(), "the live one keeps its socket"


def test_version_names_the_libraries() -> None:
    done = run_to_end("--version")
    assert done.returncode == 0
    for library in ("gRPC", "protobuf", "abseil"):
        assert library.lower() in done.stdout.lower()
