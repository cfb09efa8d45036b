"""The closed sets of values, with the numbers of the protos."""

from __future__ import annotations

import enum


class Role(enum.IntEnum):
    """What an engine does."""

    PREFILL = 1
    DECODE = 2


class DataType(enum.IntEnum):
    """Number type of cache elements."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT8_E4M3 = 4
    FLOAT8_E5M2 = 5
    INT8 = 6
    FLOAT4_E2M1 = 7
    OPAQUE = 8


class KvLayout(enum.IntEnum):
    """Order of the dimensions inside one page of a K or V entry."""

    NHD = 1
    HND = 2
    OPAQUE = 3


class AttentionKind(enum.IntEnum):
    """What attention the cache serves; decides the rank mapping."""

    MHA = 1
    MLA = 2
    HYBRID_MLA = 3


class EntryKind(enum.IntEnum):
    """What one entry holds."""

    K = 1
    V = 2
    LATENT = 3
    INDEXER = 4
    SCALE = 5
    ROPE = 6


class ModelPart(enum.IntEnum):
    """Which model of a pair something belongs to."""

    TARGET = 1
    DRAFT = 2


class StateKind(enum.IntEnum):
    """Kinds of per-request state beside pages."""

    MAMBA = 1
    SWA = 2
    DSA = 3
    DSA_TAIL = 4
    INDEX_K = 5
    DENSE_KV = 6
    SWA_RING = 7
    COMPRESS_STATE = 8
    QSA_PENDING = 9
    QSA_COMPRESSED = 10
    REQUEST_ROW = 11
    BLOCK_SCALE = 12
    BLOCK_SCALE_SWA = 13


class MemoryKind(enum.IntEnum):
    """Where a pool's memory is."""

    HOST_SHM = 1
    HOST_SHM_HUGE = 2
    CUDA = 3


class AgentState(enum.IntEnum):
    """What an agent is doing."""

    UNSPECIFIED = 0
    IDLE = 1
    REGISTERING = 2
    READY = 3
    DRAINING = 4
    SUPERSEDED = 5


class RoomState(enum.IntEnum):
    """State of a room; the minimum over ranks is the state that they share."""

    UNSPECIFIED = 0
    FAILED = 1
    BOOTSTRAPPING = 2
    WAITING_FOR_INPUT = 3
    TRANSFERRING = 4
    SUCCESS = 5

    @property
    def terminal(self) -> bool:
        """True for FAILED and SUCCESS."""
        return self in (RoomState.FAILED, RoomState.SUCCESS)


class DpPolicy(enum.IntEnum):
    """How a prefill engine spreads rooms over its DP ranks."""

    UNSPECIFIED = 0
    ROOM_MODULO = 1
    DIRECTORY = 2
