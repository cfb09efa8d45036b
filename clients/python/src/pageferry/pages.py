"""Page lists as runs of pages that lie next to each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pageferry.errors import InvalidArgument
from pageferry.topology.v1 import topology_pb2

_FEW_RUNS = 32
_Int64s = npt.NDArray[np.int64]


def _bad(message: str, field: str) -> InvalidArgument:
    return InvalidArgument(message, reason="BAD_PAGES", metadata={"field": field})


def _varint_bytes(values: npt.NDArray[np.uint64]) -> _Int64s:
    """How many bytes the wire form of each value takes."""
    sizes = np.ones(values.size, np.int64)
    for shift in range(7, 64, 7):
        sizes += values >= np.uint64(1 << shift)
    return sizes


def _put_varints(
    out: npt.NDArray[np.uint8],
    at: _Int64s,
    field_number: int,
    values: npt.NDArray[np.uint64],
    sizes: _Int64s,
) -> None:
    """Writes a tag and a value at each position."""
    out[at] = field_number << 3
    for index in range(int(sizes.max())):
        longer = sizes > index
        part = (values[longer] >> np.uint64(7 * index)) & np.uint64(0x7F)
        more = np.where(sizes[longer] > index + 1, np.uint64(0x80), np.uint64(0))
        out[at[longer] + 1 + index] = part | more


class PageRuns:
    """An ordered list of pages, kept as runs [first, first + count). Not changed once made.

    Making one costs some ten milliseconds for a million pages.
    """

    __slots__ = ("_counts", "_firsts", "page_count")

    def __init__(self, firsts: _Int64s, counts: _Int64s) -> None:
        """Takes the runs in order; most callers want `of`, `from_pages` or `from_pairs`."""
        if firsts.shape != counts.shape or firsts.ndim != 1:
            raise _bad("firsts and counts must be two lists of equal length", "page_runs")
        if firsts.size and (firsts.min() < 0 or counts.min() < 1):
            raise _bad("a run begins at page 0 or later and has at least 1 page", "page_runs")
        self._firsts = firsts
        self._counts = counts
        self.page_count = int(counts.sum())

    @classmethod
    def from_pages(cls, pages: Sequence[int] | npt.NDArray[Any]) -> PageRuns:
        """The runs of a list of page numbers, in its order."""
        array = np.asarray(pages)
        if array.size == 0:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64))
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise _bad("pages must be a flat list of whole numbers", "pages")
        array = array.astype(np.int64, copy=False)
        starts = np.flatnonzero(np.diff(array) != 1) + 1
        starts = np.concatenate((np.zeros(1, np.int64), starts))
        counts = np.diff(starts, append=array.size)
        return cls(array[starts], counts)

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[int, int]] | npt.NDArray[Any]) -> PageRuns:
        """Runs given as (first, count); neighbours that touch are merged."""
        array = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs), np.int64)
        array = array.reshape(-1, 2) if array.size == 0 else array
        if array.ndim != 2 or array.shape[1] != 2:
            raise _bad("runs must be pairs of first page and count", "page_runs")
        firsts, counts = array[:, 0], array[:, 1]
        if firsts.size > 1:
            keep = np.concatenate(([True], firsts[1:] != firsts[:-1] + counts[:-1]))
            starts = np.flatnonzero(keep)
            firsts, counts = firsts[starts], np.add.reduceat(counts, starts)
        return cls(firsts.copy(), counts.copy())

    @classmethod
    def of(cls, pages: PageRuns | Sequence[int] | npt.NDArray[Any]) -> PageRuns:
        """`pages` itself where they are runs, else the runs of a list of page numbers."""
        return pages if isinstance(pages, PageRuns) else cls.from_pages(pages)

    def pages(self) -> _Int64s:
        """The page numbers, one by one."""
        ends = np.cumsum(self._counts)
        offsets = np.repeat(self._firsts - (ends - self._counts), self._counts)
        return offsets + np.arange(self.page_count, dtype=np.int64)

    def pairs(self) -> list[tuple[int, int]]:
        """The runs as (first, count)."""
        return list(zip(self._firsts.tolist(), self._counts.tolist(), strict=True))

    def split(self, runs_at_most: int) -> list[PageRuns]:
        """The same pages in pieces of at most `runs_at_most` runs; one piece for no pages."""
        pieces = range(0, max(1, len(self)), runs_at_most)
        return [
            PageRuns(self._firsts[i : i + runs_at_most], self._counts[i : i + runs_at_most])
            for i in pieces
        ]

    def check_distinct(self) -> None:
        """Raises InvalidArgument (BAD_PAGES) where a page is named twice."""
        order = np.argsort(self._firsts, kind="stable")
        firsts = self._firsts[order]
        ends = firsts + self._counts[order]
        twice = np.flatnonzero(firsts[1:] < ends[:-1])
        if twice.size:
            page = int(firsts[twice[0] + 1])
            raise InvalidArgument(
                f"page {page} is named twice",
                reason="BAD_PAGES",
                metadata={"first": str(page), "count": str(int(self._counts[order][twice[0] + 1]))},
            )

    def add_to(self, message: Any) -> None:
        """Appends the runs to the field `page_runs` of a message.

        Long lists are encoded by NumPy: a Python object for each run would hold up every other
        thread of an engine for seconds where a list is long and its pages are scattered.
        """
        if len(self) < _FEW_RUNS:
            for first, count in self.pairs():
                message.page_runs.add(first=first, count=count)
        else:
            message.MergeFromString(self._encoded(message.PAGE_RUNS_FIELD_NUMBER))

    def _encoded(self, field_number: int) -> bytes:
        """The runs as the wire form of a repeated PageRun: tag, length, first, count."""
        firsts, counts = self._firsts.view(np.uint64), self._counts.view(np.uint64)
        first_bytes, count_bytes = _varint_bytes(firsts), _varint_bytes(counts)
        lengths = 2 + first_bytes + count_bytes
        at = np.cumsum(lengths + 2) - (lengths + 2)
        out = np.empty(int((lengths + 2).sum()), np.uint8)
        out[at] = field_number << 3 | 2
        out[at + 1] = lengths
        _put_varints(out, at + 2, topology_pb2.PageRun.FIRST_FIELD_NUMBER, firsts, first_bytes)
        at = at + 3 + first_bytes
        _put_varints(out, at, topology_pb2.PageRun.COUNT_FIELD_NUMBER, counts, count_bytes)
        return out.tobytes()

    @classmethod
    def from_proto(cls, runs: Iterable[topology_pb2.PageRun]) -> PageRuns:
        """The runs of a message, as they are."""
        array = np.asarray([(run.first, run.count) for run in runs], np.int64).reshape(-1, 2)
        return cls(array[:, 0].copy(), array[:, 1].copy())

    def __len__(self) -> int:
        """Number of runs (not of pages)."""
        return int(self._firsts.size)

    def __eq__(self, other: object) -> bool:
        """Equal runs in equal order."""
        return (
            isinstance(other, PageRuns)
            and np.array_equal(self._firsts, other._firsts)
            and np.array_equal(self._counts, other._counts)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Shows the first few runs."""
        shown = ", ".join(f"{first}+{count}" for first, count in self.pairs()[:6])
        more = ", ..." if len(self) > 6 else ""
        return f"PageRuns({self.page_count} pages: {shown}{more})"
