"""10,000 rooms by each way: what the agents hold afterwards is what they held before."""

from __future__ import annotations

import os
import pathlib
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from cluster import Program, cluster, wait_until
from engines import PREFILL, WAIT, Engine, engine_pair

ROOMS = int(os.environ.get("PAGEFERRY_SOAK_ROOMS", "10000"))
WORKERS = 32
PAGES_OF_A_ROOM = 4
# Tombstones of rooms that are over stay for a while, by design; their number is bounded.
BYTES_OF_A_TOMBSTONE = 512


@dataclass(frozen=True)
class Held:
    """What a process has."""

    rss_bytes: int
    fds: int
    threads: int


def held(program: Program) -> Held:
    assert program.process is not None
    proc = pathlib.Path(f"/proc/{program.process.pid}")
    status = (proc / "status").read_text()
    found = {
        key: int(value) for key, value in re.findall(r"(VmRSS|RssShmem|Threads):\s*(\d+)", status)
    }
    return Held(
        # Pools are shared memory and come in as they are touched.
        rss_bytes=(found["VmRSS"] - found["RssShmem"]) << 10,
        fds=len(list((proc / "fd").iterdir())),
        threads=found["Threads"],
    )


def ledger_of(program: Program) -> dict[str, float]:
    """The ledger as Prometheus sees it, without the marks of rooms that are over."""
    url = f"http://127.0.0.1:{program.ports['metrics']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
        text = response.read().decode()
    lines = re.findall(r'^pageferry_agent_held_items\{kind="(\w+)"\} (\S+)$', text, re.MULTILINE)
    assert lines, "the metrics have no ledger"
    return {kind: float(value) for kind, value in lines if kind != "tombstones"}


def run_rooms(prefill: Engine, decode: Engine, first: int, count: int) -> None:
    def worker(number: int) -> None:
        mine = [number * PAGES_OF_A_ROOM + page for page in range(PAGES_OF_A_ROOM)]
        for room in range(first + number, first + count, WORKERS):
            with (
                decode.session.open_receive(room, PREFILL, mine, aux_slot=number) as receiving,
                prefill.session.open_send(room) as sending,
            ):
                sending.send_chunk(mine, first_position=0, last=True, aux_slot=number)
                receiving.wait(WAIT)
                receiving.wait_drained(WAIT)
                sending.wait(WAIT)
                sending.wait_drained(WAIT)

    with ThreadPoolExecutor(WORKERS) as pool:
        for job in [pool.submit(worker, number) for number in range(WORKERS)]:
            job.result()


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_i9_10000_rooms_leave_nothing(transport: str) -> None:
    with (
        cluster() as running,
        engine_pair(running, flags=(f"--transports={transport}",)) as (prefill, decode),
    ):
        agents = [program for program in running.programs if "agent" in program.command[0]]
        assert len(agents) == 2
        warm_up = ROOMS // 5
        run_rooms(prefill, decode, 0, warm_up)
        before = [held(agent) for agent in agents]
        shared = running.shared_memory()
        run_rooms(prefill, decode, warm_up, ROOMS)
        after = [held(agent) for agent in agents]
        print(f"{transport}: {before} -> {after}")
        assert running.shared_memory() == shared
        for old, new in zip(before, after, strict=True):
            # gRPC opens and closes descriptors and threads of its own as calls come and go.
            assert new.fds <= old.fds + 4
            assert new.threads <= old.threads + 4
            assert new.rss_bytes <= old.rss_bytes + ROOMS * BYTES_OF_A_TOMBSTONE + (8 << 20)
        for agent in agents:
            # The gauges follow the last event by a moment.
            wait_until("an empty ledger", lambda agent=agent: not any(ledger_of(agent).values()))
