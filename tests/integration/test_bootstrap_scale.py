"""The bootstrap service at its bounds: 8,192 ranks, 10,000 watchers, 1,048,576 rooms."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Iterator

import grpc
import pageferry as pf
import pytest
from cluster import Cluster, Program, cluster, wait_until
from pageferry.bootstrap.v1 import bootstrap_pb2, bootstrap_pb2_grpc
from pageferry.topology.v1 import topology_pb2

SHAPE = pf.ParallelShape(dp=64, tp=8, pp=16)  # 8,192 ranks
WATCHERS, CONNECTIONS = 10_000, 20
ROOMS, BATCH = 1 << 20, 10_000
ROOM_BYTES = 128
LIFE = 25  # seconds of a room: longer than a slow machine takes to place all
ENGINE = bootstrap_pb2.EngineKey(engine_id="prefill-0")


@pytest.fixture
def running() -> Iterator[Cluster]:
    with cluster() as started:
        yield started


def rss_bytes(program: Program) -> int:
    assert program.process is not None
    with open(f"/proc/{program.process.pid}/status", encoding="utf-8") as status:
        found = re.search(r"^VmRSS:\s+(\d+)", status.read(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


def metric(program: Program, name: str) -> float:
    url = f"http://127.0.0.1:{program.ports['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


def claim(coordinate: pf.RankCoordinate, number: int) -> bootstrap_pb2.RegisterRequest:
    return bootstrap_pb2.RegisterRequest(
        engine=ENGINE,
        role=topology_pb2.ROLE_PREFILL,
        shape=SHAPE.to_proto(),
        profile=topology_pb2.ProfileSummary(
            page_tokens=16,
            data_type=topology_pb2.DATA_TYPE_FLOAT16,
            layout=topology_pb2.KV_LAYOUT_NHD,
            attention=topology_pb2.ATTENTION_KIND_MHA,
            total_kv_heads=8,
            head_dim=64,
        ),
        coordinate=coordinate.to_proto(),
        agent_id=f"agent-{number}",
        incarnation=bootstrap_pb2.Incarnation(start_time_unix_nanos=100, nonce=7),
        endpoint=topology_pb2.Endpoint(host="127.0.0.1", port=9000),
        ttl={"seconds": 600},
    )


async def register_all(target: str) -> float:
    """Claims every cell, many at a time; returns the seconds."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub = bootstrap_pb2_grpc.BootstrapStub(channel)
        limit = asyncio.Semaphore(64)

        async def one(number: int, coordinate: pf.RankCoordinate) -> None:
            async with limit:
                await stub.Register(claim(coordinate, number), timeout=60)

        began = time.monotonic()
        await asyncio.gather(*(one(n, cell) for n, cell in enumerate(SHAPE.coordinates())))
        return time.monotonic() - began


def test_8192_ranks_become_ready(running: Cluster) -> None:
    seconds = asyncio.run(register_all(running.bootstrap_target))
    with pf.Bootstrap.connect(running.bootstrap_target) as bootstrap:
        engine = bootstrap.get_engine("prefill-0")
        assert (engine.ready, engine.live_count) == (True, 8192)
        ranks = bootstrap.resolve_ranks("prefill-0", SHAPE.coordinates())
        assert [rank.agent_id for rank in ranks] == [f"agent-{n}" for n in range(8192)]
    print(f"8,192 ranks ready after {seconds:.1f} s, {8192 / seconds:.0f} claims/s")


async def watch_all(target: str) -> tuple[float, float]:
    """Opens all watches, changes one thing, waits until each has heard of it."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(target, options=options) for _ in range(CONNECTIONS)]
    stubs = [bootstrap_pb2_grpc.BootstrapStub(channel) for channel in channels]
    waiting, heard = WATCHERS, WATCHERS
    all_open, all_heard = asyncio.Event(), asyncio.Event()

    async def watch(number: int) -> None:
        nonlocal waiting, heard
        request = bootstrap_pb2.WatchEnginesRequest(include_ranks=False)
        stream = stubs[number % CONNECTIONS].WatchEngines(request)
        async for message in stream:
            if message.HasField("snapshot") and waiting > 0:
                waiting -= 1
                if waiting == 0:
                    all_open.set()
            if any(change.live_count == 1 for change in message.change.engines):
                heard -= 1
                if heard == 0:
                    all_heard.set()
                stream.cancel()
                return

    began = time.monotonic()
    tasks = [asyncio.create_task(watch(number)) for number in range(WATCHERS)]
    await asyncio.wait_for(all_open.wait(), 120)
    opened = time.monotonic() - began
    began = time.monotonic()
    await stubs[0].Register(claim(pf.RankCoordinate(), 0), timeout=30)
    await asyncio.wait_for(all_heard.wait(), 120)
    took = time.monotonic() - began
    await asyncio.gather(*tasks)
    for channel in channels:
        await channel.close()
    return opened, took


def test_10000_watchers_see_a_change(running: Cluster) -> None:
    opened, took = asyncio.run(watch_all(running.bootstrap_target))
    print(f"10,000 watches open after {opened:.1f} s, all have heard after {took:.2f} s")
    wait_until(
        "an end of all watches",
        lambda: metric(running.bootstrap, "pageferry_bootstrap_watchers") == 0,
    )


def test_1048576_rooms_are_placed_and_forgotten(running: Cluster) -> None:
    program = running.bootstrap
    with grpc.insecure_channel(running.bootstrap_target) as channel:
        stub = bootstrap_pb2_grpc.BootstrapStub(channel)
        stub.Register(claim(pf.RankCoordinate(), 0), timeout=30)

        def place(first: int, count: int, seconds: int) -> None:
            request = bootstrap_pb2.PlaceRoomsRequest(engine=ENGINE, ttl={"seconds": seconds})
            for room in range(first, first + count):
                request.placements.add(room_id=room * 0x9E37_79B9 % (1 << 62), dp_rank=room % 64)
            stub.PlaceRooms(request, timeout=30)

        place(0, BATCH, 1)  # what the first batch brings along is not the rooms'
        wait_until("expiry", lambda: metric(program, "pageferry_bootstrap_rooms") == 0)
        before = rss_bytes(program)
        began = time.monotonic()
        for first in range(0, ROOMS, BATCH):
            place(first, min(BATCH, ROOMS - first), LIFE)
        took = time.monotonic() - began
        assert metric(program, "pageferry_bootstrap_rooms") == ROOMS
        each = (rss_bytes(program) - before) / ROOMS
        with pytest.raises(grpc.RpcError) as failure:
            place(ROOMS, 1, LIFE)
        assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        print(f"1,048,576 rooms placed in {took:.1f} s, {each:.0f} bytes of memory each")
        assert each < ROOM_BYTES
        wait_until(
            "an end of all rooms", lambda: metric(program, "pageferry_bootstrap_rooms") == 0, 90
        )
        # What the first million left is what the second one uses.
        for first in range(0, ROOMS, BATCH):
            place(first, min(BATCH, ROOMS - first), LIFE)
        assert rss_bytes(program) - before < ROOM_BYTES * ROOMS
