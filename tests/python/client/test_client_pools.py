"""Pools as NumPy arrays."""

import gc
import os
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pageferry as pf
import pytest
from pageferry import pool_layout
from pageferry.agent.v1 import agent_pb2
from pageferry.errors import FailedPrecondition, InvalidArgument, NotFound

import fake_agent

Agents = tuple[fake_agent.FakeAgent, fake_agent.FakeAgent]
SIZE = 1 << 16


def mappings(pool: pf.Pool) -> int:
    """How often this process maps the pool; the fake agent in it does so once."""
    return Path("/proc/self/maps").read_text().count(pool.shm_name)


@pytest.fixture
def agent(agents: Agents) -> pf.Agent:
    with pf.Agent.connect(agents[0].target) as client:
        yield client


def test_views_share_the_memory(agent: pf.Agent, agents: Agents) -> None:
    pool = agent.create_pool("kv", SIZE)
    view = pool.array(128, (4, 8), np.float32)
    view[:] = 1.5
    assert pool.data.size == SIZE
    assert pool.data.flags.writeable
    assert np.array_equal(pool.data[128:256].view(np.float32), np.full(32, 1.5, np.float32))
    _, memory = agents[0].pools["kv"]
    assert np.array_equal(memory[pool.data_offset_bytes :], pool.data)
    assert pool.array(SIZE, 0, np.uint8).size == 0


@pytest.mark.parametrize(
    ("offset", "shape"), [(-1, 1), (SIZE, 1), (SIZE - 4, 5), (0, (1 << 40, 1 << 40)), (0, -1)]
)
def test_views_outside_are_refused(agent: pf.Agent, offset: int, shape: int) -> None:
    with pytest.raises(InvalidArgument):
        agent.create_pool("kv", SIZE).array(offset, shape, np.uint8)


def test_sizes_are_rounded_up_and_pools_adopted(agent: pf.Agent) -> None:
    first = agent.create_pool("kv", 5000)
    assert first.size_bytes == 8192
    first.data[7] = 7
    second = agent.create_pool("kv", 8192)
    assert (first.adopted, second.adopted) == (False, True)
    assert second.data[7] == 7


def test_arrays_outlive_close(agent: pf.Agent) -> None:
    pool = agent.create_pool("kv", SIZE)
    view = pool.array(0, 16, np.uint8)
    pool.close()
    pool.close()
    view[:] = 3
    assert view.sum() == 48
    assert mappings(pool) == 2
    for use in (lambda: pool.data, pool.bump_generation, pool.header):
        with pytest.raises(FailedPrecondition):
            use()
    del view
    gc.collect()
    assert mappings(pool) == 1


def test_release_removes_the_memory(agent: pf.Agent) -> None:
    pool = agent.create_pool("kv", SIZE)
    path = "/dev/shm" + pool.shm_name
    assert os.path.exists(path)
    agent.release_pool(pool)
    assert not os.path.exists(path)
    assert not pool.mapped
    with pytest.raises(NotFound) as failure:
        agent.release_pool("kv")
    assert failure.value.reason == "POOL_NOT_FOUND"


def test_closing_a_client_leaves_the_memory(agents: Agents) -> None:
    with pf.Agent.connect(agents[0].target) as client, client.create_pool("kv", SIZE) as pool:
        path = "/dev/shm" + pool.shm_name
    assert os.path.exists(path)
    assert not pool.mapped


def test_generation_is_one_word_of_the_header(agent: pf.Agent) -> None:
    pool = agent.create_pool("kv", SIZE)
    before = pool.header()
    control = Path("/dev/shm" + pool.shm_name)
    old = control.read_bytes()[: pool.data_offset_bytes]
    assert before.generation == 1
    assert pool.bump_generation() == 2
    new = control.read_bytes()[: pool.data_offset_bytes]
    at = pool_layout.GENERATION_OFFSET
    assert int.from_bytes(new[at : at + 8], "little") == 2
    assert old[:at] + old[at + 8 :] == new[:at] + new[at + 8 :]
    assert pool.header().nonce == before.nonce


def test_layout_agrees_with_the_services() -> None:
    header = (Path(__file__).parents[3] / "libs/transport/pool_layout.h").read_text()
    squeezed = header.replace("'", "").replace(" ", "").replace("\n", "")
    for text in (
        f"kPoolMagic=0x{pool_layout.MAGIC:x};",
        f"kPoolLayoutVersion={pool_layout.VERSION};",
        f"kSealTableOffset={pool_layout.SEAL_TABLE_OFFSET};",
        f"kSealCount={pool_layout.SEAL_COUNT};",
        "kPoolDataOffset=int64_t{2}<<20;",
        f"offsetof(PoolHeader,generation)=={pool_layout.GENERATION_OFFSET}",
        f"sizeof(PoolHeader)=={pool_layout.HEADER_BYTES}",
    ):
        assert text in squeezed


def test_memory_that_is_not_what_was_told(agents: Agents, agent: pf.Agent) -> None:
    agent.create_pool("kv", SIZE)
    good, memory = agents[0].pools["kv"]

    def altered(**fields: object) -> agent_pb2.Pool:
        message = agent_pb2.Pool()
        message.CopyFrom(good)
        for name, value in fields.items():
            setattr(message, name, value)
        return message

    with pytest.raises(NotFound):
        pf.Pool(altered(shm_name="/pageferry-none"))
    for bad in (
        altered(mapping_bytes=good.mapping_bytes + 4096),
        altered(size_bytes=SIZE // 2),
        altered(data_offset_bytes=4096),
    ):
        with pytest.raises(FailedPrecondition) as failure:
            pf.Pool(bad)
        assert failure.value.reason == "BAD_HANDLE"
    memory[0] = 0
    with pytest.raises(FailedPrecondition):
        pf.Pool(good)


def test_device_memory_is_not_mapped(agent: pf.Agent) -> None:
    message = agent_pb2.Pool(name="gpu", size_bytes=SIZE, memory_kind=3, device_handle=b"x" * 64)
    pool = pf.Pool(message)
    assert not pool.mapped
    assert pool.device_handle == b"x" * 64
    with pytest.raises(FailedPrecondition):
        _ = pool.data


def test_memory_of_the_engine_is_handed_over_by_name(agent: pf.Agent) -> None:
    memory = SharedMemory(create=True, size=SIZE + 4096)
    try:
        pool = agent.import_pool("mine", memory=memory, data_offset_bytes=4096, read_only=True)
        assert (pool.imported, pool.mapped, pool.read_only) == (True, True, True)
        assert pool.size_bytes == SIZE
        pool.array(8, 4, np.uint8)[:] = 7
        assert bytes(memory.buf[4096 + 8 : 4096 + 12]) == b"\x07" * 4
        assert agent.mapped_pools() == [pool]
        # The seals are the agent's, and can be voided when it dies.
        assert pool.shm_name != f"/{memory.name}"
        assert pool.bump_generation() == 2
        pool.close()
        assert memory.buf[4096 + 8] == 7, "closing a pool leaves the engine's memory"
    finally:
        memory.close()
        memory.unlink()


def test_memory_of_the_engine_is_handed_over_by_descriptor(agent: pf.Agent) -> None:
    descriptor = os.memfd_create("mine")
    try:
        os.ftruncate(descriptor, SIZE)
        pool = agent.import_pool("mine", memory=descriptor)
        pool.data[5] = 9
        assert os.pread(descriptor, 1, 5) == b"\x09"
        agent.release_pool(pool)
        assert not pool.mapped
        assert os.pread(descriptor, 1, 5) == b"\x09"
    finally:
        os.close(descriptor)


def test_exactly_one_handle_is_imported(agent: pf.Agent) -> None:
    for handles in ({}, {"shm_name": "/a", "device_handle": b"b"}, {"memory": 1, "shm_name": "/a"}):
        with pytest.raises(InvalidArgument):
            agent.import_pool("mine", SIZE, **handles)
    with pytest.raises(FailedPrecondition) as failure:
        agent.import_pool("mine", SIZE, shm_name="/pageferry-none")
    assert failure.value.reason == "BAD_HANDLE"
    assert agent.mapped_pools() == []
