"""What happens to the rooms of a session that has ended: they wait for evidence."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc

from pageferry.agent.v1 import agent_pb2
from pageferry.errors import FailedPrecondition
from pageferry.liveness import AgentProcess
from pageferry.pools import Pool
from pageferry.rooms import Room, SendRoom

_log = logging.getLogger("pageferry")
_FIRST_DELAY, _MOST_DELAY = 0.005, 0.5
_CALL_SECONDS = 2.0


class Host(Protocol):
    """What a session needs of its agent's client."""

    target: str
    stub: Any

    def mapped_pools(self) -> Sequence[Pool]:
        """Pools that are mapped here."""

    def forget(self, session: Any) -> None:
        """The session has ended."""


def recover(
    host: Host,
    process: AgentProcess,
    undrained: Callable[[], list[Room]],
    drained: Callable[[list[Room]], None],
    stop: threading.Event,
) -> None:
    """Marks rooms as drained as evidence comes, until none is left or `stop` is set.

    The evidence is: the agent answers that it does not hold the room, or holds it as drained; or
    its process has ended. In the second case nobody breaks the seals of what prefill rooms had
    offered, so this breaks them, unless the next agent has taken the pool over already, which
    voids them itself.
    """
    delay = _FIRST_DELAY
    while rooms := undrained():
        if process.gone():
            if any(isinstance(room, SendRoom) for room in rooms):
                _break_seals(host.mapped_pools())
            drained(rooms)
            return
        held = _held_rooms(host.stub)
        # The answer counts only if the agent that held them gave it.
        if held is not None and not process.gone():
            free = [room for room in rooms if room.room_id not in held]
            if free:
                drained(free)
                continue
        if stop.wait(delay):
            return
        delay = min(delay * 2, _MOST_DELAY)


def _break_seals(pools: Sequence[Pool]) -> None:
    for pool in pools:
        try:
            if pool.header().nonce == pool.nonce:
                pool.bump_generation()
        except (FailedPrecondition, ValueError):
            _log.debug("pool %s was closed before its seals were broken", pool.name)


def _held_rooms(stub: Any) -> set[int] | None:
    """Rooms that the agent holds and has not drained; None where it does not answer."""
    held: set[int] = set()
    token = ""
    while True:
        request = agent_pb2.ListRoomsRequest(page_size=1000, page_token=token)
        try:
            response = stub.ListRooms(request, timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            _log.debug("agent does not list its rooms: %s", error)
            return None
        held.update(info.room.room_id for info in response.rooms if not info.drained)
        token = response.next_page_token
        if not token:
            return held
