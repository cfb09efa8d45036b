#!/usr/bin/env python3
"""Time of whole rooms between two real agents, from the grant to the decode engine's SUCCESS.

One process plays both engines, so the Python client and both gRPC hops are in the figure. The same
pages copied by NumPy in this process, right before each room, stand beside it.
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

    def __init__(self, target: str, engine_id: str, role: pf.Role) -> None:
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
        self.agent.register_engine(engine_id, role, profile, wait_ready=20)
        self.session = self.agent.open_session(engine_id)

    def close(self) -> None:
        self.session.close()
        self.agent.close()


def room(prefill: Engine, decode: Engine, number: int, pages: list[int], to: list[int]) -> float:
    """Seconds from the grant to SUCCESS; the pages wait at the source already."""
    sending = prefill.session.open_send(number)
    sending.send_chunk(pages, first_position=0, last=True)
    began = time.perf_counter()
    receiving = decode.session.open_receive(number, "prefill-0", to)
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


def measure(
    prefill: Engine, decode: Engine, sizes: list[int], rounds: int
) -> list[dict[str, float]]:
    chosen = random.Random(1)
    numbers = itertools.count(1)
    print(f"{rounds} rounds; a page is {PAGE_BYTES >> 10} KiB in {LAYERS * 2} entries\n")
    print("| pages | MiB | grant to SUCCESS, median ms | p90 ms | GB/s | NumPy GB/s | ratio |")
    print("|---|---|---|---|---|---|---|")
    results = []
    for size in sizes:
        rooms: list[float] = []
        copies: list[float] = []
        for turn in range(rounds + 1):
            pages = chosen.sample(range(PAGES), size)
            to = chosen.sample(range(PAGES), size)
            copied = copy(prefill, decode, pages, to)
            moved = room(prefill, decode, next(numbers), pages, to)
            if turn > 0:  # the first touches the memory
                rooms.append(moved)
                copies.append(copied)
        length = size * PAGE_BYTES
        result = {
            "pages": size,
            "bytes": length,
            "room_ms": statistics.median(rooms) * 1e3,
            "room_p90_ms": statistics.quantiles(rooms, n=10)[-1] * 1e3,
            "room_gb_per_second": length / statistics.median(rooms) / 1e9,
            "numpy_gb_per_second": length / statistics.median(copies) / 1e9,
            "ratio": statistics.median(c / r for c, r in zip(copies, rooms, strict=True)),
        }
        print(
            "| {pages} | {0:.0f} | {room_ms:.2f} | {room_p90_ms:.2f} | {room_gb_per_second:.1f} |"
            " {numpy_gb_per_second:.1f} | {ratio:.2f} |".format(length / 2**20, **result)
        )
        results.append(result)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="rooms a size (default 30)")
    parser.add_argument("--pages", default="1,8,64,192", help="sizes of rooms, at most 256")
    parser.add_argument("--json", help="file for the numbers")
    options = parser.parse_args()
    sizes = [int(size) for size in options.pages.split(",")]
    if options.rounds < 2 or not all(0 < size <= PAGES for size in sizes):
        parser.error(f"--rounds must be at least 2, --pages 1 to {PAGES}")
    with tempfile.TemporaryDirectory(prefix="pf-bench-") as name:
        folder = Path(name)
        processes = []
        engines = []
        try:
            process, ports = start(
                folder, "bootstrap", "pageferry-bootstrap", "--listen=127.0.0.1:0"
            )
            processes.append(process)
            for engine_id, role in (("prefill-0", pf.Role.PREFILL), ("decode-0", pf.Role.DECODE)):
                process, own = start(
                    folder,
                    engine_id,
                    "pageferry-agent",
                    f"--engine-listen=unix:{folder}/{engine_id}.sock",
                    "--peer-listen=127.0.0.1:0",
                    f"--bootstrap=127.0.0.1:{ports['grpc']}",
                )
                processes.append(process)
                engines.append(Engine(own["engine"], engine_id, role))
            results = measure(engines[0], engines[1], sizes, options.rounds)
        finally:
            for engine in engines:
                engine.close()
            for process in reversed(processes):
                process.terminate()
                process.wait()
    if options.json:
        Path(options.json).write_text(json.dumps({"bench": "rooms", "sizes": results}, indent=2))


if __name__ == "__main__":
    main()
