"""The asyncio API: the same rooms, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pageferry as pf
import pytest
from pageferry.aio import AsyncAgent, AsyncBootstrap, AsyncSession
from pageferry.errors import DeadlineExceeded, InvalidArgument

import fake_agent
from conftest import ITEM_BYTES, LAYERS, PAGES, POOL_BYTES, Resources, eventually, profile
from fake_bootstrap import FakeBootstrap

T = 10.0


def run(test: Coroutine[Any, Any, None]) -> None:
    """In a loop of its own, which must not take long."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(bounded(), debug=True)


@contextlib.asynccontextmanager
async def engine(
    agent: fake_agent.FakeAgent, engine_id: str, role: pf.Role, **more: Any
) -> AsyncIterator[tuple[AsyncSession, np.ndarray]]:
    async with await AsyncAgent.connect(agent.target) as client:
        pool = await client.create_pool("kv", POOL_BYTES)
        await client.register_engine(engine_id, role, profile(), wait_ready=10)
        async with await client.open_session(engine_id, **more) as session:
            yield session, pool.array(0, (LAYERS, 2, PAGES, ITEM_BYTES), np.uint8)


Agents = tuple[fake_agent.FakeAgent, ...]


@contextlib.asynccontextmanager
async def both(agents: Agents) -> AsyncIterator[tuple[Any, Any]]:
    async with (
        engine(agents[0], "prefill-0", pf.Role.PREFILL) as prefill,
        engine(agents[1], "decode-0", pf.Role.DECODE, events=True) as decode,
    ):
        yield prefill, decode


def test_pages_arrive_at_both_ends(agents: Agents) -> None:
    async def test() -> None:
        async with both(agents) as ((prefill, source), (decode, target)):
            source[:, :, [3, 4]] = 7
            async with (
                await decode.open_receive(7, "prefill-0", [40, 41]) as receive,
                await prefill.open_send(7) as send,
            ):
                assert (await send.wait_granted(T)).granted_pages == 2
                await send.send_chunk([3, 4], last=True)
                result = await receive.wait(T)
                assert (result.pages, result.state) == (2, pf.RoomState.SUCCESS)
                await send.wait_drained(T)
                await receive.wait_drained(T)
            assert (target[:, :, [40, 41]] == 7).all()

    run(test())  # gRPC keeps a few descriptors of its own from the first loop on
    before = Resources.now()
    run(test())
    eventually(lambda: Resources.now() <= before)


def test_many_rooms_are_awaited_at_once(agents: Agents) -> None:
    async def test() -> None:
        async with both(agents) as ((prefill, _), (decode, _)):

            async def room(number: int) -> int:
                async with (
                    await decode.open_receive(number, "prefill-0", [number]) as receive,
                    await prefill.open_send(number) as send,
                ):
                    await send.send_chunk([number], last=True)
                    return (await receive.wait(T)).pages

            assert await asyncio.gather(*(room(n) for n in range(50))) == [1] * 50

    run(test())


def test_a_timeout_and_a_cancelled_wait_lose_nothing(agents: Agents) -> None:
    async def test() -> None:
        async with both(agents) as ((prefill, _), (decode, _)):
            receive = await decode.open_receive(7, "prefill-0", [1])
            with pytest.raises(DeadlineExceeded):
                await receive.wait(0.05)
            waiting = asyncio.create_task(receive.wait(T))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not receive.room.done
            send = await prefill.open_send(7)
            await send.send_chunk([1], last=True)
            assert (await receive.wait(T)).pages == 1

    run(test())


def test_a_room_whose_opening_is_cancelled_is_not_left_open(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, go_on = threading.Event(), threading.Event()
    really = pf.Session.open_receive

    def slow(*arguments: Any, **named: Any) -> pf.ReceiveRoom:
        room = really(*arguments, **named)
        opened.set()
        go_on.wait(T)
        return room

    async def test() -> None:
        async with both(agents) as ((prefill, _), (decode, _)):
            send = await prefill.open_send(7)
            monkeypatch.setattr(pf.Session, "open_receive", slow)
            opening = asyncio.create_task(decode.open_receive(7, "prefill-0", [1]))
            await asyncio.to_thread(opened.wait, T)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            go_on.set()
            with pytest.raises(pf.RoomFailed):
                await send.wait(T)

    run(test())


def test_leaving_a_room_early_aborts_it(agents: Agents) -> None:
    async def test() -> None:
        async with both(agents) as ((prefill, _), (decode, _)):
            send = await prefill.open_send(7)

            async def leave() -> None:
                async with await decode.open_receive(7, "prefill-0", [1]):
                    await send.wait_granted(T)
                    await asyncio.Event().wait()

            task = asyncio.create_task(leave())
            await send.wait_granted(T)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(pf.RoomFailed):
                await send.wait(T)
            await send.wait_drained(T)

    run(test())


def test_a_lost_agent_fails_every_room(agents: Agents) -> None:
    async def test() -> None:
        async with engine(agents[1], "decode-0", pf.Role.DECODE, events=True) as (decode, _):
            rooms = [await decode.open_receive(n, "prefill-0", [n]) for n in range(3)]
            heard = asyncio.create_task(anext_closed(decode))
            await asyncio.to_thread(agents[1].stop)
            for room in rooms:
                with pytest.raises(pf.RoomLost):
                    await room.wait(T)
            assert isinstance(await heard, pf.SessionClosed)

    async def anext_closed(session: AsyncSession) -> pf.SessionClosed | None:
        last = None
        async for event in session.events():
            last = event
        assert last is None or isinstance(last, pf.SessionClosed)
        return last

    run(test())


def test_events_must_be_asked_for(agents: Agents) -> None:
    async def test() -> None:
        async with engine(agents[0], "prefill-0", pf.Role.PREFILL) as (session, _):
            with pytest.raises(InvalidArgument):
                async for _ in session.events():
                    pass

    run(test())


def test_bootstrap_is_asked_and_watched(tmp_path: Path) -> None:
    async def test() -> None:
        service = FakeBootstrap()
        try:
            async with await AsyncBootstrap.connect(service.target) as bootstrap:
                assert await bootstrap.list_engines() == []
                await bootstrap.place_rooms("prefill-0", {5: 1})
                assert await bootstrap.lookup_rooms("prefill-0", [5, 6]) == {5: 1}

                async def first() -> None:
                    async for event in bootstrap.watch():
                        assert event.snapshot
                        # Whoever watches keeps nobody else from asking.
                        await bootstrap.list_engines()
                        return

                await asyncio.gather(*(first() for _ in range(40)))
        finally:
            service.stop()

    run(test())
