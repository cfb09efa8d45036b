"""What two fake agents do with rooms: pairs them, copies pages with NumPy, ends them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from pageferry import PageRuns
from pageferry.agent.v1 import agent_pb2
from pageferry.error.v1 import error_pb2

if TYPE_CHECKING:
    from fake_agent import FakeAgent

DECODE = 2


def detail(code: int, reason: str, message: str, **metadata: str) -> error_pb2.ErrorDetail:
    """An error as the services send it."""
    number = error_pb2.ErrorReason.Value(f"ERROR_REASON_{reason}")
    return error_pb2.ErrorDetail(code=code, reason=number, message=message, metadata=metadata)


@dataclass
class Side:
    """One agent's half of a room."""

    agent: FakeAgent
    room_id: int
    attempt: int
    state: int = agent_pb2.ROOM_STATE_BOOTSTRAPPING
    drained: bool = False
    prefill_engine_id: str = ""
    grant: agent_pb2.OpenReceive | None = None
    chunks: list[agent_pb2.SendChunk] = field(default_factory=list)
    taken: int = 0
    pages: int = 0
    bytes: int = 0

    @property
    def over(self) -> bool:
        """True once terminal."""
        return self.state in (agent_pb2.ROOM_STATE_FAILED, agent_pb2.ROOM_STATE_SUCCESS)

    def tell(self, error: error_pb2.ErrorDetail | None = None) -> None:
        """Sends the state to the engine."""
        event = agent_pb2.RoomEvent(
            room=agent_pb2.RoomRef(room_id=self.room_id, attempt=self.attempt),
            state=self.state,
            drained=self.drained,
            error=error,
            pages=self.pages,
            bytes=self.bytes,
            transport="fake",
        )
        event.elapsed.FromMilliseconds(7)
        if self.grant is not None:
            event.since_grant.FromMilliseconds(5)
        self.agent.tell(room=event)

    def end(self, state: int, error: error_pb2.ErrorDetail | None = None) -> None:
        """Ends this half, and reports it as drained where the fabric does not hold that."""
        if self.over:
            return
        self.state = state
        self.drained = state == agent_pb2.ROOM_STATE_SUCCESS
        self.tell(error)
        if not self.agent.fabric.hold_drained:
            self.drain()

    def drain(self) -> None:
        """Reports it as drained, once."""
        if not self.drained:
            self.drained = True
            self.tell(None)


class Fabric:
    """Shared by the fake agents of one test. All of it runs under one lock.

    `hold_copies` and `hold_drained` stop rooms where a test wants to look at them; call `resume`.
    """

    def __init__(self) -> None:
        """Starts without agents."""
        self.lock = threading.RLock()
        self.agents: list[FakeAgent] = []
        self.hold_copies = False
        self.hold_drained = False

    def resume(self) -> None:
        """Lets held rooms go on."""
        with self.lock:
            self.hold_copies = self.hold_drained = False
            for agent in self.agents:
                for side in (*agent.sides.values(), *agent.earlier):
                    self.step(side.room_id)
                    if side.over:
                        side.drain()

    def pair(self, room_id: int) -> tuple[Side | None, Side | None]:
        """The live halves of a room: prefill, decode."""
        found = [agent.sides.get(room_id) for agent in self.agents]
        live = [side for side in found if side is not None and not side.over]
        send = next((side for side in live if side.grant is None), None)
        return send, next((side for side in live if side.grant is not None), None)

    def step(self, room_id: int) -> None:
        """Moves a room on as far as it goes."""
        send, receive = self.pair(room_id)
        if send is None or receive is None or receive.grant is None:
            return
        grant = receive.grant
        granted = PageRuns.from_proto(grant.page_runs).pages()
        if send.state == agent_pb2.ROOM_STATE_BOOTSTRAPPING:
            send.attempt = receive.attempt
            for side in (send, receive):
                side.state = agent_pb2.ROOM_STATE_WAITING_FOR_INPUT
                side.tell()
            known = agent_pb2.PrefixKnown(
                room=grant.room,
                cached_prefix_pages=grant.cached_prefix_pages,
                granted_pages=granted.size,
            )
            send.agent.tell(prefix_known=known)
        if self.hold_copies:
            return
        while send.taken < len(send.chunks):
            chunk = send.chunks[send.taken]
            send.taken += 1
            if not self._copy(send, receive, chunk, granted):
                return

    def _copy(
        self, send: Side, receive: Side, chunk: agent_pb2.SendChunk, granted: np.ndarray
    ) -> bool:
        assert receive.grant is not None
        pages = PageRuns.from_proto(chunk.page_runs).pages()
        positions = chunk.first_position - receive.grant.cached_prefix_pages + np.arange(pages.size)
        pages, positions = pages[positions >= 0], positions[positions >= 0]
        sent = send.pages + pages.size
        if sent > granted.size or (chunk.last and sent != granted.size):
            error = detail(
                9, "PAGE_COUNT_MISMATCH", "sent and granted differ",
                granted=str(granted.size), sent=str(sent),
            )  # fmt: skip
            for side in (send, receive):
                side.end(agent_pb2.ROOM_STATE_FAILED, error)
            return False
        moved = sum(
            source.copy_pages(send, receive, pages, granted[positions])
            for source in (_EntryCopier(key) for key in send.agent.entries())
        )
        for side in (send, receive):
            side.pages, side.bytes = sent, side.bytes + moved
            side.state = agent_pb2.ROOM_STATE_TRANSFERRING
            side.tell()
        if chunk.last:
            if chunk.HasField("aux_slot") and receive.grant.HasField("aux_slot"):
                _copy_aux(send, receive, chunk.aux_slot, receive.grant.aux_slot)
            for side in (send, receive):
                side.end(agent_pb2.ROOM_STATE_SUCCESS)
        return True

    def fail(self, side: Side, own: error_pb2.ErrorDetail, peer: error_pb2.ErrorDetail) -> None:
        """Fails both halves, each with its reason."""
        for other in (half for half in self.pair(side.room_id) if half not in (None, side)):
            assert other is not None
            other.end(agent_pb2.ROOM_STATE_FAILED, peer)
        side.end(agent_pb2.ROOM_STATE_FAILED, own)


class _EntryCopier:
    def __init__(self, key: tuple[int, int, int]) -> None:
        self.key = key

    def copy_pages(self, send: Side, receive: Side, source: np.ndarray, target: np.ndarray) -> int:
        """Copies one entry's pages; returns the bytes."""
        there = receive.agent.entry(self.key)
        there[target] = send.agent.entry(self.key)[source]
        return int(source.size * there.shape[1])


def _copy_aux(send: Side, receive: Side, source: int, target: int) -> None:
    for name in send.agent.aux_names():
        receive.agent.aux(name)[target] = send.agent.aux(name)[source]
