"""The paged KV cache: where each number lies in one buffer that somebody else provides.

The buffer may be plain memory or a pool mapped from a Pageferry agent; nothing here can tell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["K", "V"]
KINDS: tuple[Kind, Kind] = ("K", "V")
_ENTRY_ALIGNMENT_BYTES = 4096
_HALF_BITS = np.int32(-0x7000_2000)  # sign, and the half's exponent and fraction shifted by 13
_HALF_SCALE = np.float32(2.0**112)  # from float32's exponent bias to float16's


@dataclass(frozen=True)
class KvEntry:
    """One buffer of one layer: what Pageferry calls an entry. Page p is at offset + p * item."""

    layer: int
    kind: Kind
    offset_bytes: int
    item_bytes: int
    length_bytes: int


@dataclass(frozen=True)
class KvLayout:
    """How a buffer holds layers, pages, tokens and heads (NHD inside a page)."""

    layers: int
    num_pages: int
    kv_heads: int = 3
    head_dim: int = 64
    page_tokens: int = 16
    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.dtype not in ("float16", "float32"):
            raise ValueError(f"KV dtype must be float16 or float32, not {self.dtype}")
        sizes = (self.layers, self.num_pages, self.kv_heads, self.head_dim, self.page_tokens)
        if min(sizes) < 1:
            raise ValueError(f"every size of a KV layout must be positive: {self}")

    @property
    def page_shape(self) -> tuple[int, int, int]:
        """Shape of one page of one entry: tokens, heads, head size."""
        return (self.page_tokens, self.kv_heads, self.head_dim)

    @property
    def item_bytes(self) -> int:
        """Bytes of one page of one entry."""
        return self.page_tokens * self.kv_heads * self.head_dim * np.dtype(self.dtype).itemsize

    @property
    def entry_stride_bytes(self) -> int:
        """Distance between entries: the pages, rounded up to whole memory pages."""
        length = self.item_bytes * self.num_pages
        return -(-length // _ENTRY_ALIGNMENT_BYTES) * _ENTRY_ALIGNMENT_BYTES

    @property
    def total_bytes(self) -> int:
        """Bytes that a buffer for this layout must have."""
        return self.entry_stride_bytes * self.layers * len(KINDS)

    @property
    def entries(self) -> list[KvEntry]:
        """Every entry, in the order K then V, layer by layer."""
        length = self.item_bytes * self.num_pages
        return [
            KvEntry(
                layer=layer,
                kind=kind,
                offset_bytes=(layer * len(KINDS) + index) * self.entry_stride_bytes,
                item_bytes=self.item_bytes,
                length_bytes=length,
            )
            for layer in range(self.layers)
            for index, kind in enumerate(KINDS)
        ]


def widen(halves: np.ndarray) -> np.ndarray:
    """float16 to float32, exact for every finite number; five times as quick as `astype`.

    Infinities and NaN, which a KV cache does not hold, become large finite numbers.
    """
    bits = halves.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= _HALF_BITS
    wide = bits.view(np.float32)
    wide *= _HALF_SCALE
    return wide


def page_digests(content: np.ndarray) -> list[str]:
    """SHA-256 of each page of what `PagedKvCache.copy_pages` gave: all layers, K and V."""
    pages = [np.ascontiguousarray(content[:, :, index]) for index in range(content.shape[2])]
    return [hashlib.sha256(page.tobytes()).hexdigest() for page in pages]


class PagedKvCache:
    """Reads and writes K and V by page number. Not thread-safe; borrows `buffer`.

    `buffer` is a one-dimensional, writable uint8 array of at least `layout.total_bytes`.
    """

    def __init__(self, buffer: np.ndarray, layout: KvLayout) -> None:
        if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
            raise ValueError("the KV buffer must be a contiguous uint8 array of one dimension")
        if buffer.nbytes < layout.total_bytes:
            raise ValueError(f"the KV buffer has {buffer.nbytes} bytes, not {layout.total_bytes}")
        self.layout = layout
        shape = (layout.num_pages, *layout.page_shape)
        self._arrays = [
            buffer[entry.offset_bytes : entry.offset_bytes + entry.length_bytes]
            .view(layout.dtype)
            .reshape(shape)
            for entry in layout.entries
        ]

    @classmethod
    def allocate(cls, layout: KvLayout) -> PagedKvCache:
        """A cache in fresh memory of this process."""
        return cls(np.zeros(layout.total_bytes, dtype=np.uint8), layout)

    def entry_array(self, layer: int, kind: int) -> np.ndarray:
        """The live array [num_pages, page_tokens, kv_heads, head_dim]; kind 0 is K, 1 is V."""
        return self._arrays[layer * len(KINDS) + kind]

    def write(
        self, layer: int, pages: np.ndarray, slots: np.ndarray, k: np.ndarray, v: np.ndarray
    ) -> None:
        """Stores tokens i at (pages[i], slots[i]); k and v are [tokens, kv_heads, head_dim]."""
        self.entry_array(layer, 0)[pages, slots] = k
        self.entry_array(layer, 1)[pages, slots] = v

    def write_token(self, layer: int, page: int, slot: int, k: np.ndarray, v: np.ndarray) -> None:
        """Stores one token; k and v are [kv_heads, head_dim]."""
        self.entry_array(layer, 0)[page, slot] = k
        self.entry_array(layer, 1)[page, slot] = v

    def read(self, layer: int, kind: int, pages: np.ndarray) -> np.ndarray:
        """A float32 copy of whole pages in the order asked, [tokens, kv_heads, head_dim]."""
        gathered = self.entry_array(layer, kind)[pages]
        if gathered.dtype == np.float16:
            gathered = widen(gathered)
        return gathered.reshape(-1, self.layout.kv_heads, self.layout.head_dim)

    def clear_tail(self, page: int, first_slot: int) -> None:
        """Zeroes a page from `first_slot` on in every entry, so that whole pages compare."""
        for array in self._arrays:
            array[page, first_slot:] = 0

    def copy_pages(self, pages: Sequence[int]) -> np.ndarray:
        """A copy of `pages`, [layers, 2, pages, page_tokens, kv_heads, head_dim], cache's dtype."""
        index = np.asarray(pages, dtype=np.int64)
        copies = np.stack([array[index] for array in self._arrays])
        return copies.reshape(self.layout.layers, len(KINDS), *copies.shape[1:])

    def store_pages(self, pages: Sequence[int], content: np.ndarray) -> None:
        """Puts what `copy_pages` returned into `pages`: what a transfer does, without one."""
        index = np.asarray(pages, dtype=np.int64)
        flat = content.reshape(len(self._arrays), *content.shape[2:])
        for array, part in zip(self._arrays, flat, strict=True):
            array[index] = part
