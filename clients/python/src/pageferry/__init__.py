"""Client library of Pageferry, which hands KV cache pages from prefill to decode engines.

`Agent` is the way in for engines, `Bootstrap` for routers and tools. The generated protocol code
is in this package too, as `pageferry.agent.v1.agent_pb2` and so on.
"""

from importlib.util import find_spec as _find_spec

if _find_spec("pageferry.error") is None:
    raise ImportError(
        "pageferry: the protocol code was not generated; run clients/python/generate.sh"
    )

from pageferry.client import Agent
from pageferry.directory import Bootstrap
from pageferry.errors import PageferryError, RoomFailed, RoomLost, SessionLost
from pageferry.events import (
    AgentStateChanged,
    Backpressure,
    CommandRefused,
    EngineLost,
    Event,
    PrefixKnown,
    RecomputeReply,
    RecomputeRequested,
    RoomUpdate,
    SessionClosed,
)
from pageferry.info import AgentInfo, EngineInfo, RankInfo
from pageferry.kinds import (
    AgentState,
    AttentionKind,
    DataType,
    DpPolicy,
    EntryKind,
    KvLayout,
    MemoryKind,
    ModelPart,
    Role,
    RoomState,
    StateKind,
)
from pageferry.pages import PageRuns
from pageferry.pools import Pool
from pageferry.profile import (
    AuxBuffer,
    Entry,
    KvProfile,
    StateComponent,
    StateEntry,
    stacked_entries,
)
from pageferry.rooms import ReceiveRoom, Room, RoomResult, SendRoom
from pageferry.session import Session
from pageferry.shape import ParallelShape, RankCoordinate
from pageferry.tls import Tls
from pageferry.watch import EngineWatch, WatchEvent

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "AgentInfo",
    "AgentState",
    "AgentStateChanged",
    "AttentionKind",
    "AuxBuffer",
    "Backpressure",
    "Bootstrap",
    "CommandRefused",
    "DataType",
    "DpPolicy",
    "EngineInfo",
    "EngineLost",
    "EngineWatch",
    "Entry",
    "EntryKind",
    "Event",
    "KvLayout",
    "KvProfile",
    "MemoryKind",
    "ModelPart",
    "PageRuns",
    "PageferryError",
    "ParallelShape",
    "Pool",
    "PrefixKnown",
    "RankCoordinate",
    "RankInfo",
    "ReceiveRoom",
    "RecomputeReply",
    "RecomputeRequested",
    "Role",
    "Room",
    "RoomFailed",
    "RoomLost",
    "RoomResult",
    "RoomState",
    "RoomUpdate",
    "SendRoom",
    "Session",
    "SessionClosed",
    "SessionLost",
    "StateComponent",
    "StateEntry",
    "StateKind",
    "Tls",
    "WatchEvent",
    "stacked_entries",
]
