#!/usr/bin/env python3
"""Time of whole rooms between two real agents, from the grant to the decode engine's SUCCESS.

One process plays both engines, so the Python client and both gRPC hops are in the figure. The same
pages copied by NumPy in this process, right before each room, stand beside it. Each way has a pair
of agents of its own; they take turns, room by room.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pageferry as pf

BIN_DIR = Path(os.environ.get("PAGEFERRY_BIN", "build/release/bin"))
LAYERS = 16
KINDS = (pf.EntryKind.K, pf.EntryKind.V)
ITEM_BYTES = 32 << 10  # 16 tokens, 8 heads of 128, 2 bytes
PAGES = 256
PAGE_BYTES = LAYERS * len(KINDS) * ITEM_BYTES


def start(
    folder: Path, name: str, binary: str, *flags: str
) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    """Starts a program and waits for its port file."""
    file = folder / f"{name}.json"
    log = folder / f"{name}.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [str(BIN_DIR / binary), f"--port-file={file}", "--metrics-listen=none", *flags],
            stdout=out,
            stderr=out,
        )
    deadline = time.monotonic() + 30
    while not file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{binary} did not start:\n{log.read_text()}")
        time.sleep(0.01)
    return process, json.loads(file.read_text())


class Engine:
    """One rank with a pool of LAYERS times K and V."""

    def __init__(
        self, target: str, engine_id: str, role: pf.Role, dp_size: int = 1, dp_rank: int = 0
    ) -> None:
        self.agent = pf.Agent.connect(target)
        pool = self.agent.create_pool("kv", PAGES * PAGE_BYTES)
        entries = []
        self.arrays = []
        for place, (layer, kind) in enumerate(itertools.product(range(LAYERS), KINDS)):
            offset = place * PAGES * ITEM_BYTES
            entries.append(pf.Entry(layer, kind, "kv", offset, ITEM_BYTES, PAGES))
            self.arrays.append(pool.array(offset, (PAGES, ITEM_BYTES), np.uint8))
        profile = pf.KvProfile(
            page_tokens=16,
            data_type=pf.DataType.FLOAT16,
            layout=pf.KvLayout.NHD,
            attention=pf.AttentionKind.MHA,
            total_kv_heads=8,
            rank_kv_heads=8,
            head_dim=128,
            entries=entries,
        )
        self.agent.register_engine(
            engine_id,
            role,
            profile,
            shape=pf.ParallelShape(dp=dp_size),
            coordinate=pf.RankCoordinate(dp=dp_rank),
            wait_ready=20,
        )
        self.session = self.agent.open_session(engine_id)

    def close(self) -> None:
        self.session.close()
        self.agent.close()


def room(
    prefill: Engine,
    decode: Engine,
    number: int,
    pages: list[int],
    to: list[int],
    engine_id: str = "prefill-0",
) -> float:
    """Seconds from the grant to SUCCESS; the pages wait at the source already."""
    sending = prefill.session.open_send(number)
    sending.send_chunk(pages, first_position=0, last=True)
    began = time.perf_counter()
    receiving = decode.session.open_receive(number, engine_id, to)
    receiving.wait(timeout=60)
    seconds = time.perf_counter() - began
    sending.wait(timeout=60)
    return seconds


def copy(prefill: Engine, decode: Engine, pages: list[int], to: list[int]) -> float:
    began = time.perf_counter()
    for source, target in zip(prefill.arrays, decode.arrays, strict=True):
        for one, other in zip(pages, to, strict=True):
            target[other] = source[one]
    return time.perf_counter() - began


Pair = tuple[Engine, Engine]


def measure(pairs: dict[str, Pair], sizes: list[int], rounds: int) -> list[dict[str, object]]:
    chosen = random.Random(1)
    numbers = itertools.count(1)
    print(f"{rounds} rounds; a page is {PAGE_BYTES >> 10} KiB in {LAYERS * 2} entries\n")
    print("| pages | MiB | way | grant to SUCCESS, p50 ms | p99 ms | GB/s | NumPy GB/s | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    results: list[dict[str, object]] = []
    for size in sizes:
        rooms: dict[str, list[float]] = {way: [] for way in pairs}
        copies: dict[str, list[float]] = {way: [] for way in pairs}
        # A small room takes little time, and its last percent is of interest.
        for turn in range((rounds if size > 8 else 10 * rounds) + 1):
            for way, (prefill, decode) in pairs.items():
                pages = chosen.sample(range(PAGES), size)
                to = chosen.sample(range(PAGES), size)
                copied = copy(prefill, decode, pages, to)
                moved = room(prefill, decode, next(numbers), pages, to, f"prefill-{way}")
                if turn > 0:  # the first touches the memory
                    rooms[way].append(moved)
                    copies[way].append(copied)
        for way in pairs:
            results.append(report(way, size, rooms[way], copies[way]))
    return results


def report(way: str, size: int, rooms: list[float], copies: list[float]) -> dict[str, object]:
    length = size * PAGE_BYTES
    result: dict[str, object] = {
        "way": way,
        "pages": size,
        "bytes": length,
        "room_ms": statistics.median(rooms) * 1e3,
        "room_p99_ms": statistics.quantiles(rooms, n=100)[-1] * 1e3,
        "room_gb_per_second": length / statistics.median(rooms) / 1e9,
        "numpy_gb_per_second": length / statistics.median(copies) / 1e9,
        "ratio": statistics.median(c / r for c, r in zip(copies, rooms, strict=True)),
    }
    print(
        "| {pages} | {0:.0f} | {way} | {room_ms:.2f} | {room_p99_ms:.2f} |"
        " {room_gb_per_second:.1f} | {numpy_gb_per_second:.1f} | {ratio:.2f} |".format(
            length / 2**20, **result
        )
    )
    return result


class Fleet:
    """A bootstrap service and agents, ended whatever happens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.engines: list[Engine] = []
        process, ports = start(folder, "bootstrap", "pageferry-bootstrap", "--listen=127.0.0.1:0")
        self.processes.append(process)
        self.bootstrap = f"127.0.0.1:{ports['grpc']}"

    def engine(
        self, way: str, engine_id: str, role: pf.Role, dp_size: int = 1, dp_rank: int = 0
    ) -> Engine:
        name = f"{engine_id}-{dp_rank}"
        process, own = start(
            self.folder,
            name,
            "pageferry-agent",
            f"--engine-listen=unix:{self.folder}/{name}.sock",
            "--peer-listen=127.0.0.1:0",
            f"--bootstrap={self.bootstrap}",
            f"--transports={way}",
        )
        self.processes.append(process)
        engine = Engine(own["engine"], engine_id, role, dp_size, dp_rank)
        self.engines.append(engine)
        return engine

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self.engines:
            engine.close()
        for process in reversed(self.processes):
            process.terminate()
            process.wait()


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_idle(way: str, seconds: float) -> float:
    """Percent of a core that an agent takes which has four open sessions and no room."""
    with tempfile.TemporaryDirectory(prefix="pf-bench-") as name, Fleet(Path(name)) as fleet:
        decode = fleet.engine(way, "decode", pf.Role.DECODE)
        agent = fleet.processes[-1]
        for rank in range(4):
            fleet.engine(way, "prefill", pf.Role.PREFILL, 4, rank)
        for number, prefill in enumerate(fleet.engines[1:]):
            room(prefill, decode, number, [1], [1], "prefill")
        time.sleep(2)  # sessions become idle
        before = cpu_seconds(agent)
        time.sleep(seconds)
        return (cpu_seconds(agent) - before) / seconds * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="rooms a size (default 30)")
    parser.add_argument("--pages", default="1,8,64,192", help="sizes of rooms, at most 256")
    parser.add_argument("--ways", default="local,tcp", help="transports (default local,tcp)")
    parser.add_argument("--idle", type=float, default=10, help="seconds of idleness (default 10)")
    parser.add_argument("--json", help="file for the numbers")
    options = parser.parse_args()
    sizes = [int(size) for size in options.pages.split(",")]
    if options.rounds < 2 or not all(0 < size <= PAGES for size in sizes):
        parser.error(f"--rounds must be at least 2, --pages 1 to {PAGES}")
    ways = options.ways.split(",")
    with tempfile.TemporaryDirectory(prefix="pf-bench-") as name, Fleet(Path(name)) as fleet:
        pairs = {
            way: (
                fleet.engine(way, f"prefill-{way}", pf.Role.PREFILL),
                fleet.engine(way, f"decode-{way}", pf.Role.DECODE),
            )
            for way in ways
        }
        results = measure(pairs, sizes, options.rounds)
    idle = {way: measure_idle(way, options.idle) for way in ways if options.idle > 0}
    for way, percent in idle.items():
        print(f"\nidle agent, four sessions, {way}: {percent:.2f} % of a core")
    if options.json:
        document = {"bench": "rooms", "sizes": results, "idle_percent": idle}
        Path(options.json).write_text(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
