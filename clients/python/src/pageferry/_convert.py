"""Small conversions between messages and plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
from google.protobuf import duration_pb2

from pageferry._checks import check_range
from pageferry.agent.v1 import agent_pb2
from pageferry.topology.v1 import topology_pb2

States = Mapping[int, Sequence[int] | npt.NDArray[Any]]


def duration(seconds: float | None) -> duration_pb2.Duration | None:
    """Seconds as a message; None stays None (the field is left unset)."""
    if seconds is None:
        return None
    nanos = round(seconds * 1e9)
    return duration_pb2.Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def seconds(message: duration_pb2.Duration) -> float:
    """The message as seconds."""
    return message.seconds + message.nanos * 1e-9


def room_ref(room_id: int, attempt: int) -> agent_pb2.RoomRef:
    """Names a room."""
    return agent_pb2.RoomRef(room_id=room_id, attempt=attempt)


def endpoint(message: topology_pb2.Endpoint) -> str:
    """host:port, with brackets around an IPv6 address; empty where there is none."""
    if not message.host:
        return ""
    host = f"[{message.host}]" if ":" in message.host else message.host
    return f"{host}:{message.port}"


def state_indices(states: States | None) -> list[topology_pb2.StateIndices]:
    """Indices by the component's position in the profile, as messages."""
    result = []
    for component, indices in (states or {}).items():
        check_range("states component", component, 0, 63)
        check_range("states indices", len(indices), 0, 1 << 20)
        numbers = [int(index) for index in indices]
        result.append(topology_pb2.StateIndices(component=component, indices=numbers))
    return result
