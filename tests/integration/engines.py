"""Engines without a model: pools whose every byte is known, so that every byte can be checked."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator

import numpy as np
import pageferry as pf
from cluster import Cluster

LAYERS = 4
KINDS = 2
ITEM_BYTES = 1040  # not a multiple of a cache line, so that pages do not line up
GUARD_BYTES = 4096  # between entries and around the aux rows
AUX_BYTES = 192
AUX_SLOTS = 1024
CANARY = 0xC5
WAIT = 60.0
PREFILL = "prefill"


def pattern(room: int, layer: int, kind: int, position: int) -> np.ndarray:
    """The bytes of one page of one entry, by room, layer, kind, position in the prompt, offset."""
    seed = (room * 1_000_003 + layer * 8191 + kind * 131 + position * 524_287) & 0xFFFF_FFFF
    offset = np.arange(ITEM_BYTES, dtype=np.uint64)
    mixed = (offset + np.uint64(seed)) * np.uint64(0x9E37_79B9_7F4A_7C15)
    return (mixed >> np.uint64(53)).astype(np.uint8)


def aux_pattern(room: int) -> np.ndarray:
    return ((np.arange(AUX_BYTES) * 7 + room) % 251).astype(np.uint8)


class Engine:
    """One rank: a pool with entries, guards between them, and aux rows; and a session."""

    def __init__(
        self,
        agent: pf.Agent,
        engine_id: str,
        role: pf.Role,
        *,
        pages: int,
        shape: pf.ParallelShape | None = None,
        coordinate: pf.RankCoordinate | None = None,
        make_pool: Callable[[int], pf.Pool] | None = None,
        dp_by_directory: bool = False,
    ) -> None:
        self.agent = agent
        self.pages = pages
        stride = pages * ITEM_BYTES + GUARD_BYTES
        aux_offset = GUARD_BYTES + LAYERS * KINDS * stride
        size = aux_offset + AUX_SLOTS * AUX_BYTES + GUARD_BYTES
        self.pool = make_pool(size) if make_pool else agent.create_pool("kv", size)
        self.pool.data[:] = CANARY
        order = list(itertools.product(range(LAYERS), range(KINDS)))
        # Entries pair by (layer, kind): the decode side lists them in another order.
        if role == pf.Role.DECODE:
            random.Random(5).shuffle(order)
        self.arrays: dict[tuple[int, int], np.ndarray] = {}
        entries = []
        for place, (layer, kind) in enumerate(order):
            offset = GUARD_BYTES + place * stride
            name = (pf.EntryKind.K, pf.EntryKind.V)[kind]
            entries.append(pf.Entry(layer, name, "kv", offset, ITEM_BYTES, pages))
            self.arrays[layer, kind] = self.pool.array(offset, (pages, ITEM_BYTES), np.uint8)
        self.aux = self.pool.array(aux_offset, (AUX_SLOTS, AUX_BYTES), np.uint8)
        profile = pf.KvProfile(
            page_tokens=16,
            data_type=pf.DataType.FLOAT16,
            layout=pf.KvLayout.NHD,
            attention=pf.AttentionKind.MHA,
            total_kv_heads=8,
            rank_kv_heads=8 // (shape.tp if shape else 1),
            head_dim=64,
            entries=entries,
            aux=[pf.AuxBuffer("row", "kv", aux_offset, AUX_BYTES, AUX_SLOTS)],
        )
        agent.register_engine(
            engine_id,
            role,
            profile,
            shape=shape or pf.ParallelShape(),
            coordinate=coordinate or pf.RankCoordinate(),
            dp_by_directory=dp_by_directory,
            wait_ready=20,
        )
        self.session = agent.open_session(engine_id)

    def fill(self, room: int, pages: list[int], aux_slot: int | None = None) -> None:
        """Writes the pattern of `room` to pages, in order of the prompt."""
        for (layer, kind), array in self.arrays.items():
            for position, page in enumerate(pages):
                array[page] = pattern(room, layer, kind, position)
        if aux_slot is not None:
            self.aux[aux_slot] = aux_pattern(room)

    def check(
        self, room: int, pages: list[int], aux_slot: int | None = None, first: int = 0
    ) -> None:
        """Every byte of the pages is that of `room`; the first page is position `first`."""
        for (layer, kind), array in self.arrays.items():
            for position, page in enumerate(pages, first):
                expected = pattern(room, layer, kind, position)
                assert (array[page] == expected).all(), (room, layer, kind, position, page)
        if aux_slot is not None:
            assert (self.aux[aux_slot] == aux_pattern(room)).all(), (room, aux_slot)

    def check_untouched(self, granted: set[int], aux_slots: set[int]) -> None:
        """No byte outside of the granted pages and slots has changed."""
        seen = np.array(self.pool.data, copy=True)
        base = self.pool.data.__array_interface__["data"][0]
        for array in self.arrays.values():
            start = array.__array_interface__["data"][0] - base
            copy = seen[start : start + self.pages * ITEM_BYTES].reshape(self.pages, ITEM_BYTES)
            copy[sorted(granted)] = CANARY
        start = self.aux.__array_interface__["data"][0] - base
        rows = seen[start : start + AUX_SLOTS * AUX_BYTES].reshape(AUX_SLOTS, AUX_BYTES)
        rows[sorted(aux_slots)] = CANARY
        changed = np.flatnonzero(seen != CANARY)
        assert changed.size == 0, f"{changed.size} bytes outside were changed, first {changed[:4]}"

    def close(self) -> None:
        self.session.close()


@contextlib.contextmanager
def engine_pair(
    running: Cluster, *, pages: int = 512, flags: tuple[str, ...] = ()
) -> Iterator[tuple[Engine, Engine]]:
    """A prefill and a decode engine of one rank, each with an agent."""
    running.agent("prefill", *flags)
    running.agent("decode", *flags)
    with contextlib.ExitStack() as stack:
        engines = []
        for name, role in (("prefill", pf.Role.PREFILL), ("decode", pf.Role.DECODE)):
            agent = stack.enter_context(pf.Agent.connect(running.target(name)))
            engine = Engine(agent, name, role, pages=pages)
            stack.callback(engine.close)
            engines.append(engine)
        yield engines[0], engines[1]


def take_pages(free: list[int], count: int) -> list[int]:
    """Takes `count` pages from a shuffled list."""
    taken, free[:] = free[:count], free[count:]
    return taken


def send(engine: Engine, room: int, pages: list[int], chunk: int, aux_slot: int) -> pf.RoomResult:
    """Sends the pages in chunks and waits until the room is over and drained."""
    with engine.session.open_send(room) as sending:
        for first in range(0, max(len(pages), 1), chunk):
            last = first + chunk >= len(pages)
            sending.send_chunk(
                pages[first : first + chunk],
                first_position=first,
                last=last,
                aux_slot=aux_slot if last else None,
            )
        result = sending.wait(WAIT)
        sending.wait_drained(WAIT)
        return result


def receive(
    engine: Engine,
    room: int,
    pages: list[int],
    aux_slot: int,
    prefix: int = 0,
    dp_rank: int | None = None,
) -> pf.RoomResult:
    with engine.session.open_receive(
        room, PREFILL, pages, aux_slot=aux_slot, cached_prefix_pages=prefix, prefill_dp_rank=dp_rank
    ) as receiving:
        result = receiving.wait(WAIT)
        receiving.wait_drained(WAIT)
        return result
