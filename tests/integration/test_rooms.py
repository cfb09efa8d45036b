"""Rooms between real agents: every byte is checked, also those that must not change."""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pageferry as pf
import pytest
from cluster import ROOT, cluster
from engines import PREFILL, Engine, engine_pair, receive, send, take_pages

WAIT = 60.0


def test_200_rooms_at_once_with_random_pages() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    rooms = dice.sample(range(1 << 62), 200)
    with cluster() as running, engine_pair(running, pages=3200) as (prefill, decode):
        free = [dice.sample(range(3200), 3200) for _ in range(2)]
        slots = [dice.sample(range(1024), 200) for _ in range(2)]
        plans = []
        for number, room in enumerate(rooms):
            count = dice.choice([0, 1, 2, 3, 7, 15, 30])
            source, target = (take_pages(list_, count) for list_ in free)
            prefill.fill(room, source, slots[0][number])
            plans.append((room, source, target, slots[0][number], slots[1][number]))

        def run(plan: tuple[int, list[int], list[int], int, int]) -> tuple[int, int]:
            room, source, target, source_slot, target_slot = plan
            order = random.Random(room)
            chunk = order.choice([1, 4, 64])
            # Half of the rooms are sent before they are granted.
            sides = [
                lambda: send(prefill, room, source, chunk, source_slot),
                lambda: receive(decode, room, target, target_slot),
            ]
            order.shuffle(sides)
            results = [job.result(WAIT) for job in [both.submit(side) for side in sides]]
            for result in results:
                assert result.pages == len(target)
            return room, results[0].bytes

        with ThreadPoolExecutor(64) as pool, ThreadPoolExecutor(64) as both:
            for room, moved in pool.map(run, plans):
                assert moved > 0, room
        for room, _, target, _, target_slot in plans:
            decode.check(room, target, target_slot)
        decode.check_untouched(
            {page for plan in plans for page in plan[2]}, {plan[4] for plan in plans}
        )
        for engine in (prefill, decode):
            held = {key: value for key, value in engine.agent.info().ledger.items() if value}
            held.pop("tombstones", None)
            assert held == {}, "the ledger of an idle agent is empty"


@pytest.mark.parametrize("sent_from", ["start", "prefix"])
def test_cached_prefix_is_not_moved(sent_from: str) -> None:
    with cluster() as running, engine_pair(running) as (prefill, decode):
        room, source, target = 7, [30, 4, 5, 6, 99], [400, 12, 13]
        prefill.fill(room, source, 0)
        receiving = decode.session.open_receive(
            room, PREFILL, target, aux_slot=3, cached_prefix_pages=2
        )
        with receiving, prefill.session.open_send(room) as sending:
            grant = sending.wait_granted(WAIT)
            assert (grant.cached_prefix_pages, grant.granted_pages) == (2, 3)
            first = 0 if sent_from == "start" else 2
            sending.send_chunk(source[first:], first_position=first, last=True, aux_slot=0)
            assert receiving.wait(WAIT).pages == 3
            sending.wait(WAIT)
        decode.check(room, target, 3, first=2)
        decode.check_untouched(set(target), {3})


def test_full_prefix_hit_moves_aux_alone() -> None:
    with cluster() as running, engine_pair(running) as (prefill, decode):
        prefill.fill(5, [1, 2], 9)
        with ThreadPoolExecutor(2) as pool:
            sent = pool.submit(send, prefill, 5, [1, 2], 64, 9)
            got = pool.submit(receive, decode, 5, [], 8, 2)
            assert got.result(WAIT).pages == 0
            assert sent.result(WAIT).pages == 0
        decode.check(5, [], 8)
        decode.check_untouched(set(), {8})


@pytest.mark.parametrize("sent", [[1, 2], [1, 2, 3, 4]])
def test_other_number_of_pages_fails_both_ends(sent: list[int]) -> None:
    with (
        cluster() as running,
        engine_pair(running) as (prefill, decode),
        ThreadPoolExecutor(2) as pool,
    ):
        ends = [
            pool.submit(send, prefill, 5, sent, 64, 0),
            pool.submit(receive, decode, 5, [7, 8, 9], 0),
        ]
        for end in ends:
            with pytest.raises(pf.RoomFailed) as failure:
                end.result(WAIT)
            assert failure.value.reason == "PAGE_COUNT_MISMATCH"


@pytest.mark.parametrize("aborting", ["prefill", "decode"])
@pytest.mark.parametrize("moment", ["before", "granted", "moving"])
def test_abort_reaches_the_other_end_with_its_reason(aborting: str, moment: str) -> None:
    with cluster() as running, engine_pair(running) as (prefill, decode):
        sending = prefill.session.open_send(11)
        if moment == "before" and aborting == "prefill":
            sending.abort("too long")
            receiving = decode.session.open_receive(11, PREFILL, [1, 2, 3], aux_slot=0)
        else:
            receiving = decode.session.open_receive(11, PREFILL, [1, 2, 3], aux_slot=0)
            if moment != "before":
                sending.wait_granted(WAIT)
            if moment == "moving":
                sending.send_chunk([4], first_position=0)
            (sending if aborting == "prefill" else receiving).abort("too long")
        own, other = (sending, receiving) if aborting == "prefill" else (receiving, sending)
        for room, reasons in ((own, {"ABORTED"}), (other, {"PEER_ABORTED"})):
            if moment == "before" and aborting == "decode" and room is other:
                continue  # the grant may never have left; then the send waits for another one
            with pytest.raises(pf.RoomFailed) as failure:
                room.wait(WAIT)
            assert failure.value.reason in reasons
            if room is other:
                assert "too long" in str(failure.value)
            room.wait_drained(WAIT)
        sending.abort()
        sending.wait_drained(WAIT)


def test_deadline_fails_the_room_at_both_ends() -> None:
    with cluster() as running, engine_pair(running) as (prefill, decode):
        sending = prefill.session.open_send(11, timeout=WAIT)
        receiving = decode.session.open_receive(11, PREFILL, [1], aux_slot=0, timeout=0.3)
        for room in (receiving, sending):
            with pytest.raises(pf.RoomFailed) as failure:
                room.wait(WAIT)
            assert failure.value.reason == "DEADLINE"
            room.wait_drained(WAIT)


def test_a_broken_seal_is_never_success() -> None:
    """I2: the source takes its pages back in the middle of a copy and writes on them."""
    pages = 24_000  # 200 MB: long enough to be met in the middle
    with cluster() as running, engine_pair(running, pages=pages) as (prefill, decode):
        broken = 0
        for room in range(1, 9):
            for array in prefill.arrays.values():
                array[:] = room
            moving = decode.session.open_receive(room, PREFILL, range(pages), aux_slot=0)
            with moving, prefill.session.open_send(room) as sending:
                sending.wait_granted(WAIT)
                sending.send_chunk(range(pages), first_position=0, last=True, aux_slot=0)
                if room % 2:
                    prefill.pool.bump_generation()
                else:
                    sending.abort("taken back")
                    with contextlib.suppress(pf.RoomFailed):
                        sending.wait_drained(WAIT)
                for array in prefill.arrays.values():
                    array[:] = 255
                try:
                    moving.wait(WAIT)
                except pf.RoomFailed as failure:
                    assert failure.reason in {"SEAL_BROKEN", "PEER_ABORTED"}
                    broken += 1
                else:
                    for array in decode.arrays.values():
                        assert (array == room).all(), "SUCCESS with bytes of another time"
                moving.wait_drained(WAIT)
            if room % 2:
                # A new session makes seals of the new generation.
                prefill.session.close()
                prefill.session = prefill.agent.open_session(PREFILL)
            # Whatever was void before, the next room is whole.
            prefill.fill(100 + room, [3, 4], 1)
            taking = decode.session.open_receive(100 + room, PREFILL, [8, 2], aux_slot=1)
            send(prefill, 100 + room, [3, 4], 2, 1)
            taking.wait(WAIT)
            decode.check(100 + room, [8, 2], 1)
        assert broken > 0, "no copy was met in the middle"


def test_another_shape_is_refused_with_both_sizes() -> None:
    with cluster() as running, contextlib.ExitStack() as stack:
        running.agent("prefill")
        running.agent("decode")
        prefill = stack.enter_context(pf.Agent.connect(running.target("prefill")))
        stack.callback(Engine(prefill, "prefill", pf.Role.PREFILL, pages=8).close)
        decode = stack.enter_context(pf.Agent.connect(running.target("decode")))
        engine = Engine(decode, "decode", pf.Role.DECODE, pages=8, shape=pf.ParallelShape(tp=2))
        stack.callback(engine.close)
        receiving = engine.session.open_receive(1, PREFILL, [1], aux_slot=0)
        with pytest.raises(pf.RoomFailed) as failure:
            receiving.wait(WAIT)
        assert failure.value.code.name == "UNIMPLEMENTED"
        assert "tp1" in str(failure.value) and "tp2" in str(failure.value)


@pytest.mark.parametrize("number", [0, 1], ids=["sync", "asyncio"])
def test_the_examples_of_the_clients_readme(number: int) -> None:
    text = (ROOT / "clients/python/README.md").read_text()
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[number]
    with cluster() as running:
        sockets = []
        for name in ("prefill", "decode"):
            running.agent(name)
            sockets.append(running.target(name).removeprefix("unix:"))
        done = subprocess.run(
            [sys.executable, "-c", example, *sockets], capture_output=True, text=True, timeout=WAIT
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("3 pages, ")
