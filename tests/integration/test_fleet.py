"""Engines of several ranks, over both ways: each rank has an agent, every byte is checked."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pageferry as pf
import pytest
from cluster import Cluster, cluster
from engines import Engine, receive, send, take_pages

WAIT = 60.0
ROLES = {"prefill": pf.Role.PREFILL, "decode": pf.Role.DECODE}
Ranks = dict[pf.RankCoordinate, Engine]


@contextlib.contextmanager
def fleet(
    running: Cluster,
    shape: pf.ParallelShape,
    *,
    transport: str,
    pages: int = 128,
    dp_by_directory: bool = False,
) -> Iterator[tuple[Ranks, Ranks]]:
    """Both engines with all their ranks."""
    sizes = (range(size) for size in (shape.dp, shape.cp, shape.tp, shape.pp))
    cells = [
        pf.RankCoordinate(dp=dp, cp=cp, tp=tp, pp=pp)
        for dp, cp, tp, pp in itertools.product(*sizes)
    ]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2 * len(cells)) as pool:
        jobs = []
        for (name, role), (number, cell) in itertools.product(ROLES.items(), enumerate(cells)):
            running.agent(f"{name}{number}", f"--transports={transport}")
            agent = stack.enter_context(pf.Agent.connect(running.target(f"{name}{number}")))
            job = pool.submit(
                Engine,
                agent,
                name,
                role,
                pages=pages,
                shape=shape,
                coordinate=cell,
                dp_by_directory=dp_by_directory and role == pf.Role.PREFILL,
            )
            jobs.append((name, cell, job))
        ranks: dict[str, Ranks] = {name: {} for name in ROLES}
        for name, cell, job in jobs:
            ranks[name][cell] = job.result(WAIT)
            stack.callback(ranks[name][cell].close)
        yield ranks["prefill"], ranks["decode"]
        for engine in itertools.chain(ranks["prefill"].values(), ranks["decode"].values()):
            info = engine.agent.info()
            held = {key: value for key, value in info.ledger.items() if value}
            held.pop("tombstones", None)
            assert held == {}, "the ledger of an idle agent is empty"
            assert {session.transport for session in info.sessions} <= {transport}


@dataclass
class Plan:
    """One hand-over of one rank."""

    room: int
    seed: int
    source: Engine
    target: Engine
    source_pages: list[int]
    target_pages: list[int]
    slots: tuple[int, int]
    hint: int | None = None

    def run(self, both: ThreadPoolExecutor) -> None:
        dice = random.Random(self.seed)
        chunk = dice.choice([1, 4, 64])
        self.source.fill(self.seed, self.source_pages, self.slots[0])
        sides = [
            lambda: send(self.source, self.room, self.source_pages, chunk, self.slots[0]),
            lambda: receive(
                self.target, self.room, self.target_pages, self.slots[1], dp_rank=self.hint
            ),
        ]
        dice.shuffle(sides)  # half of the rooms are sent before they are granted
        for job in [both.submit(side) for side in sides]:
            assert job.result(WAIT).pages == len(self.target_pages)


class Allotment:
    """Which pages and slots of an engine are free; each is used once."""

    def __init__(self, engine: Engine, dice: random.Random) -> None:
        self.engine = engine
        self.free = dice.sample(range(engine.pages), engine.pages)
        self.slots = itertools.count()
        self.pages: set[int] = set()
        self.used_slots: set[int] = set()

    def take(self, count: int) -> tuple[list[int], int]:
        taken, slot = take_pages(self.free, count), next(self.slots)
        self.pages.update(taken)
        self.used_slots.add(slot)
        return taken, slot


def run_and_check(plans: list[Plan], targets: list[Allotment]) -> None:
    with ThreadPoolExecutor(32) as pool, ThreadPoolExecutor(64) as both:
        list(pool.map(lambda plan: plan.run(both), plans))
    for plan in plans:
        plan.target.check(plan.seed, plan.target_pages, plan.slots[1])
    for target in targets:
        target.engine.check_untouched(target.pages, target.used_slots)


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize(
    "shape",
    [
        pf.ParallelShape(),
        pf.ParallelShape(tp=2),
        pf.ParallelShape(tp=4),
        pf.ParallelShape(pp=2),
        pf.ParallelShape(tp=2, pp=2),
    ],
    ids=["tp1", "tp2", "tp4", "pp2", "tp2pp2"],
)
def test_equal_shapes(shape: pf.ParallelShape, transport: str) -> None:
    dice = random.Random(11)
    with cluster() as running, fleet(running, shape, transport=transport) as (prefill, decode):
        plans, targets = [], []
        for number, cell in enumerate(prefill):
            source = Allotment(prefill[cell], dice)
            target = Allotment(decode[cell], dice)
            targets.append(target)
            for room in range(10):
                count = dice.choice([0, 1, 3, 9])
                pages, slot = source.take(count)
                at, to_slot = target.take(count)
                # What ranks move differs, so that a rank that got another's bytes is found.
                plans.append(
                    Plan(
                        room,
                        room * 1000 + number,
                        prefill[cell],
                        decode[cell],
                        pages,
                        at,
                        (slot, to_slot),
                    )
                )
        run_and_check(plans, targets)


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize(
    ("found_by", "rooms"), [("modulo", 1000), ("hint", 100), ("directory", 100)]
)
def test_rooms_over_four_agent_pairs(found_by: str, rooms: int, transport: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    shape = pf.ParallelShape(dp=4)
    with (
        cluster() as running,
        fleet(
            running,
            shape,
            transport=transport,
            pages=8 * rooms,
            dp_by_directory=found_by == "directory",
        ) as (prefill, decode),
    ):
        sources = [Allotment(engine, dice) for engine in prefill.values()]
        targets = [Allotment(engine, dice) for engine in decode.values()]
        plans = []
        for room in dice.sample(range(1 << 62), rooms):
            rank = room % 4 if found_by == "modulo" else dice.randrange(4)
            source, target = sources[rank], dice.choice(targets)
            count = dice.choice([0, 1, 2, 3, 7, 15])
            pages, slot = source.take(count)
            at, to_slot = target.take(count)
            plans.append(
                Plan(
                    room,
                    room,
                    source.engine,
                    target.engine,
                    pages,
                    at,
                    (slot, to_slot),
                    rank if found_by == "hint" else None,
                )
            )
        run_and_check(plans, targets)
