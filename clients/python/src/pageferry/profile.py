"""How an engine rank's cache lies in memory, checked before it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pageferry._checks import check_enum, check_name, check_range, invalid
from pageferry.kinds import (
    AttentionKind,
    DataType,
    EntryKind,
    KvLayout,
    ModelPart,
    StateKind,
)
from pageferry.topology.v1 import topology_pb2

_GIB = 1 << 30
_MAX_OFFSET = 1 << 44


def _check_span(what: str, pool: str, end_bytes: int, pool_sizes: Mapping[str, int] | None) -> None:
    """Checks that a buffer's end lies in its pool; pools that are not known are the agent's job."""
    size = (pool_sizes or {}).get(pool)
    if size is not None and end_bytes > size:
        raise invalid(f"{what} ends at byte {end_bytes} of pool {pool!r}", what, end_bytes, size)


@dataclass(frozen=True, slots=True)
class Entry:
    """One buffer of one layer: page p begins at `offset_bytes + p * item_bytes`."""

    layer: int
    kind: EntryKind
    pool: str
    offset_bytes: int
    item_bytes: int
    page_count: int
    part: ModelPart = ModelPart.TARGET

    def check(self, pool_sizes: Mapping[str, int] | None = None) -> None:
        """Raises InvalidArgument that names the field and its bounds."""
        what = f"entry layer {self.layer} {getattr(self.kind, 'name', self.kind)}"
        check_range(f"{what} layer", self.layer, 0, 65_535)
        check_enum(f"{what} kind", self.kind, EntryKind)
        check_enum(f"{what} part", self.part, ModelPart)
        check_name(f"{what} pool", self.pool, 64)
        check_range(f"{what} offset_bytes", self.offset_bytes, 0, _MAX_OFFSET)
        check_range(f"{what} item_bytes", self.item_bytes, 1, _GIB)
        check_range(f"{what} page_count", self.page_count, 1, 1 << 31)
        _check_span(
            what, self.pool, self.offset_bytes + self.page_count * self.item_bytes, pool_sizes
        )

    def to_proto(self) -> topology_pb2.Entry:
        """The message."""
        return topology_pb2.Entry(
            layer=self.layer,
            kind=int(self.kind),  # type: ignore[arg-type]
            part=int(self.part),  # type: ignore[arg-type]
            pool_name=self.pool,
            offset_bytes=self.offset_bytes,
            item_bytes=self.item_bytes,
            page_count=self.page_count,
        )


def stacked_entries(
    pool: str,
    *,
    layers: Iterable[int],
    item_bytes: int,
    page_count: int,
    kinds: Sequence[EntryKind] = (EntryKind.K, EntryKind.V),
    offset_bytes: int = 0,
    part: ModelPart = ModelPart.TARGET,
) -> list[Entry]:
    """Entries that lie one behind the other: for each layer, for each kind, all its pages.

    This is the memory of a C-ordered array [layer][kind][page][item_bytes] at `offset_bytes`.
    """
    entries: list[Entry] = []
    for layer in layers:
        for kind in kinds:
            at = offset_bytes + len(entries) * page_count * item_bytes
            entries.append(Entry(layer, kind, pool, at, item_bytes, page_count, part))
    return entries


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One buffer of a state component; see topology.proto for the slicing fields."""

    layer: int
    pool: str
    offset_bytes: int
    item_bytes: int
    item_count: int
    sliced_dim: int = 0
    outer_count: int = 1
    shard_groups: Sequence[int] = ()

    def check(self, pool_sizes: Mapping[str, int] | None = None) -> None:
        """Raises InvalidArgument that names the field and its bounds."""
        what = f"state entry layer {self.layer}"
        check_range(f"{what} layer", self.layer, -1, 65_535)
        check_name(f"{what} pool", self.pool, 64)
        check_range(f"{what} offset_bytes", self.offset_bytes, 0, _MAX_OFFSET)
        check_range(f"{what} item_bytes", self.item_bytes, 0, _GIB)
        check_range(f"{what} item_count", self.item_count, 1, 1 << 31)
        _check_span(
            what, self.pool, self.offset_bytes + self.item_count * self.item_bytes, pool_sizes
        )

    def to_proto(self) -> topology_pb2.StateEntry:
        """The message."""
        return topology_pb2.StateEntry(
            layer=self.layer,
            pool_name=self.pool,
            offset_bytes=self.offset_bytes,
            item_bytes=self.item_bytes,
            item_count=self.item_count,
            sliced_dim=self.sliced_dim,
            outer_count=self.outer_count,
            shard_groups=self.shard_groups,
        )


@dataclass(frozen=True, slots=True)
class StateComponent:
    """State of one kind; pairs across engines by (kind, part)."""

    kind: StateKind
    entries: Sequence[StateEntry]
    part: ModelPart = ModelPart.TARGET
    page_tokens: int = 0
    layout: KvLayout = KvLayout.OPAQUE

    def check(self, pool_sizes: Mapping[str, int] | None = None) -> None:
        """Raises InvalidArgument that names the field and its bounds."""
        check_enum("state kind", self.kind, StateKind)
        check_enum("state part", self.part, ModelPart)
        check_enum("state layout", self.layout, KvLayout)
        check_range("state entries", len(self.entries), 0, 65_536)
        check_range("state page_tokens", self.page_tokens, 0, 65_536)
        for entry in self.entries:
            entry.check(pool_sizes)

    def to_proto(self) -> topology_pb2.StateComponent:
        """The message."""
        return topology_pb2.StateComponent(
            kind=int(self.kind),  # type: ignore[arg-type]
            part=int(self.part),  # type: ignore[arg-type]
            entries=[entry.to_proto() for entry in self.entries],
            page_tokens=self.page_tokens,
            layout=int(self.layout),  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True)
class AuxBuffer:
    """Per-request metadata, one item a slot; pairs across engines by name."""

    name: str
    pool: str
    offset_bytes: int
    item_bytes: int
    slot_count: int

    def check(self, pool_sizes: Mapping[str, int] | None = None) -> None:
        """Raises InvalidArgument that names the field and its bounds."""
        what = f"aux {self.name}"
        check_name(f"{what} name", self.name, 64, lower=True)
        check_name(f"{what} pool", self.pool, 64)
        check_range(f"{what} offset_bytes", self.offset_bytes, 0, _MAX_OFFSET)
        check_range(f"{what} item_bytes", self.item_bytes, 1, 16 << 20)
        check_range(f"{what} slot_count", self.slot_count, 1, 1 << 20)
        _check_span(
            what, self.pool, self.offset_bytes + self.slot_count * self.item_bytes, pool_sizes
        )

    def to_proto(self) -> topology_pb2.AuxBuffer:
        """The message."""
        return topology_pb2.AuxBuffer(
            name=self.name,
            pool_name=self.pool,
            offset_bytes=self.offset_bytes,
            item_bytes=self.item_bytes,
            slot_count=self.slot_count,
        )


@dataclass(frozen=True, slots=True)
class KvProfile:
    """The cache of one engine rank. Types, attention and heads must agree between engines."""

    page_tokens: int
    data_type: DataType
    layout: KvLayout
    attention: AttentionKind
    total_kv_heads: int
    rank_kv_heads: int
    head_dim: int
    entries: Sequence[Entry]
    states: Sequence[StateComponent] = ()
    aux: Sequence[AuxBuffer] = ()
    model_fingerprint: str = ""
    all_cp_ranks_send: bool = False
    kv_shards: int = 0
    decode_cp: int = 0
    dsa_layer_split: bool = False

    def check(self, pool_sizes: Mapping[str, int] | None = None) -> None:
        """Raises InvalidArgument that names the field and its bounds.

        `pool_sizes` (bytes of data by pool name) allows the buffers' ends to be checked too.
        """
        check_enum("data_type", self.data_type, DataType)
        check_enum("layout", self.layout, KvLayout)
        check_enum("attention", self.attention, AttentionKind)
        least_heads = 0 if self.attention == AttentionKind.MLA else 1
        check_range("page_tokens", self.page_tokens, 1, 65_536)
        check_range("total_kv_heads", self.total_kv_heads, least_heads, 65_536)
        check_range("rank_kv_heads", self.rank_kv_heads, least_heads, 65_536)
        check_range("head_dim", self.head_dim, 1, 65_536)
        check_range("entries", len(self.entries), 1, 65_536)
        check_range("states", len(self.states), 0, 64)
        check_range("aux", len(self.aux), 0, 64)
        check_range("model_fingerprint characters", len(self.model_fingerprint), 0, 256)
        seen: set[tuple[int, int, int]] = set()
        for entry in self.entries:
            entry.check(pool_sizes)
            key = (entry.layer, entry.kind, entry.part)
            if key in seen:
                name = f"layer {entry.layer} {entry.kind.name} {entry.part.name}"
                raise invalid(f"entries name {name} twice", "entries", name, "once")
            seen.add(key)
        for state in self.states:
            state.check(pool_sizes)
        for aux in self.aux:
            aux.check(pool_sizes)
        names = [aux.name for aux in self.aux]
        if len(set(names)) != len(names):
            raise invalid("two aux buffers have one name", "aux", ",".join(names), "distinct")

    def to_proto(self) -> topology_pb2.KvProfile:
        """The message."""
        return topology_pb2.KvProfile(
            page_tokens=self.page_tokens,
            data_type=int(self.data_type),  # type: ignore[arg-type]
            layout=int(self.layout),  # type: ignore[arg-type]
            attention=int(self.attention),  # type: ignore[arg-type]
            total_kv_heads=self.total_kv_heads,
            rank_kv_heads=self.rank_kv_heads,
            head_dim=self.head_dim,
            entries=[entry.to_proto() for entry in self.entries],
            states=[state.to_proto() for state in self.states],
            aux=[aux.to_proto() for aux in self.aux],
            model_fingerprint=self.model_fingerprint,
            all_cp_ranks_send=self.all_cp_ranks_send,
            kv_shards=self.kv_shards,
            decode_cp=self.decode_cp,
            dsa_layer_split=self.dsa_layer_split,
        )
