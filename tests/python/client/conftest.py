"""Fixtures: a pair of fake agents and engines that are registered with them."""
# ruff: noqa: E402

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CLIENT = Path(__file__).resolve().parents[3] / "clients" / "python"
try:
    import pageferry  # noqa: F401
except ModuleNotFoundError:
    sys.path.insert(0, str(CLIENT / "src"))

import numpy as np
import pageferry as pf

import fake_agent
from fake_fabric import Fabric

PAGE_TOKENS, HEADS, HEAD_DIM, LAYERS, PAGES = 4, 2, 8, 3, 64
ITEM_BYTES = PAGE_TOKENS * HEADS * HEAD_DIM * 2
KV_BYTES = LAYERS * 2 * PAGES * ITEM_BYTES
AUX_BYTES, AUX_SLOTS = 32, 8
POOL_BYTES = KV_BYTES + AUX_BYTES * AUX_SLOTS


def profile(pool: str = "kv") -> pf.KvProfile:
    """A small cache: [layer][K, V][page], then the aux slots."""
    return pf.KvProfile(
        page_tokens=PAGE_TOKENS,
        data_type=pf.DataType.FLOAT16,
        layout=pf.KvLayout.NHD,
        attention=pf.AttentionKind.MHA,
        total_kv_heads=HEADS,
        rank_kv_heads=HEADS,
        head_dim=HEAD_DIM,
        entries=pf.stacked_entries(
            pool, layers=range(LAYERS), item_bytes=ITEM_BYTES, page_count=PAGES
        ),
        aux=[pf.AuxBuffer("first_token", pool, KV_BYTES, AUX_BYTES, AUX_SLOTS)],
    )


@dataclass
class Engine:
    """One side of a test: agent client, pool, session."""

    agent: pf.Agent
    pool: pf.Pool
    session: pf.Session

    @property
    def kv(self) -> np.ndarray:
        """The cache as [layer][kind][page][byte]."""
        return self.pool.array(0, (LAYERS, 2, PAGES, ITEM_BYTES), np.uint8)

    @property
    def aux(self) -> np.ndarray:
        """The aux buffer as [slot][byte]."""
        return self.pool.array(KV_BYTES, (AUX_SLOTS, AUX_BYTES), np.uint8)


def start_engine(target: str, engine_id: str, role: pf.Role, **session: object) -> Engine:
    """Connects, makes the pool, registers, opens the session."""
    agent = pf.Agent.connect(target)
    try:
        pool = agent.create_pool("kv", POOL_BYTES)
        agent.register_engine(engine_id, role, profile(), wait_ready=10)
        return Engine(agent, pool, agent.open_session(engine_id, **session))  # type: ignore[arg-type]
    except BaseException:
        agent.close()
        raise


def eventually(true: Callable[[], bool], timeout: float = 10.0) -> None:
    """Waits for something that has no event of its own."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        pause.wait(0.01)


@dataclass
class Resources:
    """Threads and open files of this process, but for the workers of the fakes' servers."""

    threads: int
    files: int

    @classmethod
    def now(cls) -> Resources:
        """Counts them."""
        gc.collect()
        names = [thread.name for thread in threading.enumerate()]
        ours = [name for name in names if not name.startswith("ThreadPoolExecutor")]
        return cls(len(ours), len(os.listdir("/proc/self/fd")))

    def __le__(self, other: Resources) -> bool:
        """Not more of either."""
        return self.threads <= other.threads and self.files <= other.files


@pytest.fixture
def fabric() -> Fabric:
    """What the agents of the test share."""
    return Fabric()


@pytest.fixture
def agents(fabric: Fabric, tmp_path: Path) -> Iterator[tuple[fake_agent.FakeAgent, ...]]:
    """Prefill and decode agent."""
    pair = tuple(
        fake_agent.FakeAgent(fabric, tmp_path / f"{role}.sock", role)
        for role in ("prefill", "decode")
    )
    yield pair
    for agent in pair:
        agent.stop()


@pytest.fixture
def prefill(agents: tuple[fake_agent.FakeAgent, ...]) -> Iterator[Engine]:
    """A prefill engine with random pages."""
    engine = start_engine(agents[0].target, "prefill-0", pf.Role.PREFILL, events=True)
    engine.kv[:] = np.random.default_rng(7).integers(0, 256, engine.kv.shape, np.uint8)
    yield engine
    engine.agent.close()


@pytest.fixture
def decode(agents: tuple[fake_agent.FakeAgent, ...]) -> Iterator[Engine]:
    """A decode engine with empty pages."""
    engine = start_engine(agents[1].target, "decode-0", pf.Role.DECODE, events=True)
    yield engine
    engine.agent.close()
