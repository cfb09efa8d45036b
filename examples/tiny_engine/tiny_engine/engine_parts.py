"""What an engine is told at its start, how its cache is described, and whom it answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pageferry as pf

from tiny_engine.aux import AUX_BYTES
from tiny_engine.kv_cache import KvLayout
from tiny_engine.model_file import MODEL_SHA256
from tiny_engine.wire import LineSocket
from tiny_engine.work import Work

POOL_NAME = "kv"
AUX_NAME = "request"
_KINDS = {"K": pf.EntryKind.K, "V": pf.EntryKind.V}


@dataclass(frozen=True)
class EngineOptions:
    """Where an engine's agent is, how it is called, where routers find it, and how big it is.

    A replica is one DP rank of `dp_size`; `dp_by_directory` is for those of a prefill engine: rooms
    are found where they are, not by their number.
    """

    agent: str
    engine_id: str
    listen: Path
    num_pages: int = 128
    dp_size: int = 1
    dp_rank: int = 0
    dp_by_directory: bool = False
    tls: pf.Tls | None = None
    aux_slots: int = 64
    start_seconds: float = 30.0
    room_seconds: float = 120.0


@dataclass(frozen=True)
class Asked:
    """Work, and the router that waits for it."""

    router: LineSocket
    work: Work

    def tell(self, event: str, **more: Any) -> None:
        """Sends an event of the room; a router that has gone is noticed by its thread."""
        self.router.send({"event": event, "room": self.work.room, **more})

    def tell_failed(self, code: str, reason: str, message: str) -> None:
        """Sends the event that ends a room early."""
        self.tell("failed", code=code, reason=reason, message=message)

    def tell_error(self, error: pf.PageferryError) -> None:
        """The same, for what the client library raised or reported."""
        reason = error.reason
        if isinstance(error, pf.SessionLost) and reason == "UNSPECIFIED":
            reason = "AGENT_LOST"  # nobody was left who could name one
        self.tell_failed(error.code.name, reason, error.message)


def make_profile(layout: KvLayout, aux_offset: int, aux_slots: int) -> pf.KvProfile:
    """Tells Pageferry how the cache lies in the pool."""
    entries = [
        pf.Entry(
            layer=entry.layer,
            kind=_KINDS[entry.kind],
            pool=POOL_NAME,
            offset_bytes=entry.offset_bytes,
            item_bytes=entry.item_bytes,
            page_count=layout.num_pages,
        )
        for entry in layout.entries
    ]
    return pf.KvProfile(
        page_tokens=layout.page_tokens,
        data_type=pf.DataType.FLOAT16,
        layout=pf.KvLayout.NHD,
        attention=pf.AttentionKind.MHA,
        total_kv_heads=layout.kv_heads,
        rank_kv_heads=layout.kv_heads,
        head_dim=layout.head_dim,
        entries=entries,
        aux=[pf.AuxBuffer(AUX_NAME, POOL_NAME, aux_offset, AUX_BYTES, aux_slots)],
        model_fingerprint=f"sha256:{MODEL_SHA256}",
    )
