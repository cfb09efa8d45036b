"""Pools that the engine owns, huge pages and locked pools, with real processes and their deaths."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import resource
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory

import pageferry as pf
import pytest
from cluster import Cluster, Program, cluster, wait_until
from engines import Engine

WAIT = 60.0
SHM = pathlib.Path("/dev/shm")
# Memory that an engine of this file made, in /proc/PID/maps and behind /proc/PID/fd.
OWN = re.compile(r"memfd:engine|/engine-[0-9a-f]{12}")


class Owner:
    """An engine with memory of its own, of each kind, that gives it back."""

    def __init__(self) -> None:
        self.undo = contextlib.ExitStack()
        self.descriptors: list[int] = []

    def shared_memory(self, size: int) -> SharedMemory:
        memory = SharedMemory(f"engine-{secrets.token_hex(6)}", create=True, size=size)
        self.undo.callback(memory.unlink)
        self.undo.callback(memory.close)
        return memory

    def memfd(self, size: int) -> int:
        descriptor = os.memfd_create("engine")
        self.undo.callback(os.close, descriptor)
        os.ftruncate(descriptor, size)
        self.descriptors.append(descriptor)
        return descriptor


@pytest.fixture
def owner() -> Iterator[Owner]:
    it = Owner()
    with it.undo:
        yield it


@contextlib.contextmanager
def client_of(running: Cluster, name: str) -> Iterator[pf.Agent]:
    with pf.Agent.connect(running.target(name)) as client:
        yield client


def move(prefill: Engine, decode: Engine, room: int) -> None:
    """Moves three scattered pages and checks every byte of the target."""
    prefill.fill(room, [9, 2, 5], 3)
    with (
        prefill.session.open_send(room) as sending,
        decode.session.open_receive(room, "prefill", [1, 8, 3], aux_slot=7) as receiving,
    ):
        sending.send_chunk([9, 2, 5], first_position=0, last=True, aux_slot=3)
        receiving.wait(WAIT)
        sending.wait(WAIT)
        sending.wait_drained(WAIT)
    decode.check(room, [1, 8, 3], 7)
    decode.check_untouched({1, 8, 3}, {7})


@contextlib.contextmanager
def pair(running: Cluster, owner: Owner, kind: str) -> Iterator[tuple[Engine, Engine]]:
    """Engines with memory of their own, which begins in the middle of it."""
    with contextlib.ExitStack() as stack:
        engines = []
        for name, role in (("prefill", pf.Role.PREFILL), ("decode", pf.Role.DECODE)):
            running.agent(name)
            client = stack.enter_context(client_of(running, name))

            def make(size: int, client: pf.Agent = client, role: pf.Role = role) -> pf.Pool:
                return client.import_pool(
                    "kv",
                    size,
                    memory=getattr(owner, kind)(size + 8192),
                    data_offset_bytes=8192,
                    read_only=role == pf.Role.PREFILL,
                )

            engines.append(Engine(client, name, role, pages=16, make_pool=make))
            stack.callback(engines[-1].close)
        yield engines[0], engines[1]


@pytest.mark.parametrize("kind", ["shared_memory", "memfd"])
def test_rooms_between_memory_of_the_engines(owner: Owner, kind: str) -> None:
    with cluster() as running, pair(running, owner, kind) as (prefill, decode):
        move(prefill, decode, 11)
        assert [session.transport for session in decode.agent.info().sessions] == ["local"]
        # The agent has leave to read the prefill engine's memory, and no more.
        maps = pathlib.Path(f"/proc/{pid_of(running, 'prefill')}/maps").read_text()
        own = [line for line in maps.splitlines() if OWN.search(line)]
        assert own
        assert all(line.split()[1].startswith("r--s") for line in own), own


def test_i1_seals_of_imported_memory_are_void_when_its_agent_is_killed(owner: Owner) -> None:
    with cluster() as running, pair(running, owner, "memfd") as (prefill, decode):
        generation = prefill.pool.header().generation
        receiving = decode.session.open_receive(9, "prefill", [1, 2], aux_slot=0)
        sending = prefill.session.open_send(9)
        sending.wait_granted(WAIT)
        sending.send_chunk([3], first_position=0, last=False)
        next(program for program in running.programs if program.name == "prefill").kill()
        sending.wait_drained(WAIT)
        assert prefill.pool.header().generation == generation + 1
        with pytest.raises(pf.RoomFailed) as failure:
            receiving.wait(WAIT)
        assert failure.value.reason == "PEER_LOST"
        receiving.wait_drained(WAIT)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_i6_an_engine_that_cuts_its_memory_ends_its_rooms_and_no_agent(
    owner: Owner, side: str
) -> None:
    with cluster() as running, pair(running, owner, "memfd") as (prefill, decode):
        move(prefill, decode, 8)  # each maps the other's, before
        # The owner's descriptors, in order of making.
        os.ftruncate(owner.descriptors[0 if side == "prefill" else 1], 0)
        receiving = decode.session.open_receive(9, "prefill", [1, 2], aux_slot=0)
        sending = prefill.session.open_send(9)
        sending.send_chunk([3, 4], first_position=0, last=True, aux_slot=0)
        with pytest.raises(pf.RoomFailed) as failure:
            receiving.wait(WAIT)
        assert failure.value.reason == "TRANSPORT"
        receiving.wait_drained(WAIT)
        sending.wait_drained(WAIT)
        for engine in (prefill, decode):
            assert engine.agent.info().pool_names == ("kv",)


def pid_of(running: Cluster, name: str) -> int:
    process = next(program for program in running.programs if program.name == name).process
    assert process is not None
    return process.pid


ENGINE = """
import os, sys
import pageferry as pf
sys.path.insert(0, sys.argv[1])
from engines import Engine
client = pf.Agent.connect(sys.argv[2])
def make(size):
    if sys.argv[3]:
        descriptor = os.open("/dev/shm/" + sys.argv[3], os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    else:
        descriptor = os.memfd_create("engine")
    os.ftruncate(descriptor, size)
    if sys.argv[3]:
        return client.import_pool("kv", size, shm_name="/" + sys.argv[3])
    return client.import_pool("kv", memory=descriptor)
engine = Engine(client, "decode", pf.Role.DECODE, pages=8, make_pool=make)
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def engine_process(running: Cluster, shm_name: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", ENGINE, str(pathlib.Path(__file__).parent)]
    process = subprocess.Popen(
        [*command, running.target("decode"), shm_name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("named", [True, False])
def test_a_killed_engines_pool_goes_after_the_grace_time(named: bool) -> None:
    with cluster() as running:
        agent = running.agent("decode", "--pool-grace=1s")
        name = f"engine-{secrets.token_hex(6)}" if named else ""
        try:
            with engine_process(running, name) as process, client_of(running, "decode") as client:
                assert client.info().pool_names == ("kv",)
                assert len(running.shared_memory()) == 1
                process.send_signal(signal.SIGKILL)
                process.wait(WAIT)
                wait_until("end of the pool", lambda: client.info().pool_names == ())
                wait_until("its control file's end", lambda: running.shared_memory() == [])
                assert agent.process is not None
                open_files = pathlib.Path(f"/proc/{agent.process.pid}")
                # Nothing of the engine's memory is held any more.
                wait_until("unmapping", lambda: not OWN.search((open_files / "maps").read_text()))
                links = [os.readlink(link) for link in (open_files / "fd").iterdir()]
                assert not [link for link in links if OWN.search(link)]
                if named:
                    assert (SHM / name).exists(), "the engine's file is not the agent's to remove"
            # The next engine, with memory of its own.
            with engine_process(running, "") as process, client_of(running, "decode") as client:
                assert client.info().pool_names == ("kv",)
        finally:
            if named:
                (SHM / name).unlink(missing_ok=True)


def test_a_new_engine_need_not_wait_for_the_grace_time() -> None:
    with cluster() as running:
        running.agent("decode", "--pool-grace=600s")
        for _ in range(2):
            with engine_process(running, "") as process:
                process.send_signal(signal.SIGKILL)
                process.wait(WAIT)
            with client_of(running, "decode") as client:
                wait_until("end of the session", lambda: not has_session(running))
                assert client.info().pool_names == ("kv",), "kept for the engine to come back"


def has_session(running: Cluster) -> bool:
    """Whether the agent still holds the dead engine's session, as its log tells."""
    log = next(program for program in running.programs if program.name == "decode").log.read_text()
    return log.count("session_opened") > log.count("session_closed")


def test_imported_memory_outlives_its_agent(owner: Owner) -> None:
    with cluster() as running:
        agent = running.agent("decode", "--pool-grace=2s")
        memories: list[int] = []

        def make(size: int) -> pf.Pool:
            memories[:] = memories or [owner.memfd(size)]
            return client.import_pool("kv", memory=memories[0])

        with client_of(running, "decode") as client:
            engine = Engine(client, "decode", pf.Role.DECODE, pages=8, make_pool=make)
            generation = engine.pool.header().generation
            agent.kill()
            assert len(running.shared_memory()) == 1
            engine.pool.bump_generation()
            engine.pool.data[100] = 42
        agent.start()
        with client_of(running, "decode") as client:
            pool = make(0)
            assert pool.data[100] == 42
            assert pool.header().generation > generation + 1, "no seal of the dead agent is whole"
            client.release_pool(pool)
            Engine(client, "decode", pf.Role.DECODE, pages=8, make_pool=make).close()
            agent.kill()
        # This time no engine comes back: the control file is an orphan.
        agent.start()
        wait_until("reaping of the control file", lambda: running.shared_memory() == [])


def locked_bytes(agent: Program) -> int:
    assert agent.process is not None
    status = pathlib.Path(f"/proc/{agent.process.pid}/status").read_text()
    found = re.search(r"VmLck:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def test_locked_pools_count_and_say_what_the_limit_is(owner: Owner) -> None:
    setpriv = shutil.which("setpriv")
    prlimit = shutil.which("prlimit")
    if os.geteuid() != 0 or setpriv is None or prlimit is None:
        pytest.skip("needs root, setpriv and prlimit to take CAP_IPC_LOCK away")
    limit = 1 << 20
    most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if most != resource.RLIM_INFINITY and most < limit:
        pytest.skip(f"this process may lock {most} bytes")
    with cluster() as running:
        agent = running.agent("decode", "--lock-pools")
        agent.stop()
        agent.command = [
            prlimit, f"--memlock={limit}:{limit}",
            setpriv, "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", *agent.command,
        ]  # fmt: skip
        agent.start()
        with client_of(running, "decode") as client:
            client.create_pool("small", 1 << 19)
            assert locked_bytes(agent) == 1 << 19
            memory = owner.memfd(1 << 20)
            for make in (
                lambda: client.create_pool("big", 1 << 20),
                lambda: client.import_pool("big", memory=memory),
            ):
                with pytest.raises(pf.errors.ResourceExhausted) as failure:
                    make()
                assert failure.value.reason == "OUT_OF_MEMORY"
                assert failure.value.metadata == {
                    "needed_bytes": str(1 << 20),
                    "available_bytes": str(1 << 19),
                    "where": "RLIMIT_MEMLOCK",
                    "limit_bytes": str(limit),
                    "locked_bytes": str(1 << 19),
                }
            client.release_pool("small")
            wait_until("unlocking", lambda: locked_bytes(agent) == 0)
            assert client.import_pool("big", memory=memory).mapped
            assert locked_bytes(agent) == 1 << 20


def test_huge_pages_are_got_or_the_reason_is_told() -> None:
    with cluster() as running:
        running.agent("decode")
        with client_of(running, "decode") as client:
            pool = client.create_pool("kv", (4 << 20) - 5, prefer_huge_pages=True)
            assert pool.size_bytes == 4 << 20
            pool.data[:] = 5
            if pool.huge_bytes == pool.size_bytes:
                assert pool.kind == pf.MemoryKind.HOST_SHM_HUGE
                assert pool.huge_pages_note == ""
                must = client.create_pool("must", 4 << 20, kind=pf.MemoryKind.HOST_SHM_HUGE)
                assert must.huge_bytes == 4 << 20
            else:
                assert pool.kind == pf.MemoryKind.HOST_SHM
                assert "shmem_enabled" in pool.huge_pages_note
                with pytest.raises(pf.errors.ResourceExhausted, match="huge pages"):
                    client.create_pool("must", 4 << 20, kind=pf.MemoryKind.HOST_SHM_HUGE)
