"""Page lists and their runs."""

import time

import numpy as np
import pytest
from pageferry import PageRuns
from pageferry.agent.v1 import agent_pb2
from pageferry.errors import InvalidArgument


def sent(runs: PageRuns) -> PageRuns:
    """What the other side reads."""
    message = agent_pb2.OpenReceive(cached_prefix_pages=7)
    runs.add_to(message)
    wire = message.SerializeToString()
    message = agent_pb2.OpenReceive.FromString(wire)
    assert message.cached_prefix_pages == 7
    return PageRuns.from_proto(message.page_runs)


@pytest.mark.parametrize(
    ("pages", "pairs"),
    [
        ([], []),
        ([5], [(5, 1)]),
        ([0, 1, 2], [(0, 3)]),
        ([2, 1, 0], [(2, 1), (1, 1), (0, 1)]),
        ([7, 8, 3, 4, 5, 9], [(7, 2), (3, 3), (9, 1)]),
        ([1, 1], [(1, 1), (1, 1)]),
    ],
)
def test_pages_to_runs_and_back(pages: list[int], pairs: list[tuple[int, int]]) -> None:
    runs = PageRuns.from_pages(pages)
    assert runs.pairs() == pairs
    assert runs.page_count == len(pages)
    assert runs.pages().tolist() == pages
    assert sent(runs) == runs


@pytest.mark.parametrize("seed", range(5))
def test_random_lists_come_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pages = rng.permutation(rng.integers(1, 300))[: rng.integers(0, 300)]
    runs = PageRuns.of(pages.astype(np.uint32))
    assert np.array_equal(runs.pages(), pages)
    assert PageRuns.from_pairs(runs.pairs()) == runs
    assert sent(runs) == runs
    runs.check_distinct()
    pieces = runs.split(3)
    assert all(len(piece) <= 3 for piece in pieces)
    assert np.array_equal(np.concatenate([piece.pages() for piece in pieces]), pages)


def test_long_lists_are_sent_as_short_ones_are() -> None:
    rng = np.random.default_rng(3)
    edges = [2**k + d for k in range(62) for d in (-1, 0, 1)]
    firsts = np.concatenate((edges, rng.integers(0, 1 << 31, 2000)))
    counts = rng.permutation(np.concatenate((edges, rng.integers(1, 300, 2000))))
    runs = PageRuns(firsts, np.maximum(counts, 1))
    long, short = agent_pb2.SendChunk(), agent_pb2.SendChunk()
    runs.add_to(long)
    for first, count in runs.pairs():
        short.page_runs.add(first=first, count=count)
    assert long == short


def test_touching_pairs_are_merged() -> None:
    assert PageRuns.from_pairs([(4, 2), (6, 1), (0, 3), (3, 1)]).pairs() == [(4, 3), (0, 4)]
    assert PageRuns.from_pairs([]).page_count == 0


@pytest.mark.parametrize("bad", [[-1], [[1, 2]], [1.5], ["a"]])
def test_bad_pages(bad: list[object]) -> None:
    with pytest.raises(InvalidArgument) as failure:
        PageRuns.from_pages(bad)  # type: ignore[arg-type]
    assert failure.value.reason == "BAD_PAGES"


@pytest.mark.parametrize("pairs", [[(0, 0)], [(-1, 2)], [(1, 2, 3)]])
def test_bad_pairs(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidArgument):
        PageRuns.from_pairs(pairs)


@pytest.mark.parametrize(
    ("pairs", "page"), [([(0, 10), (20, 5), (3, 1)], "3"), ([(9, 1), (9, 1)], "9")]
)
def test_a_page_that_is_named_twice(pairs: list[tuple[int, int]], page: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        PageRuns.from_pairs(pairs).check_distinct()
    assert failure.value.reason == "BAD_PAGES"
    assert failure.value.metadata["first"] == page


def test_a_million_pages_are_quick() -> None:
    pages = np.random.default_rng(1).permutation(1_000_000)
    began = time.thread_time()
    runs = PageRuns.of(pages)
    back = runs.pages()
    runs.add_to(agent_pb2.SendChunk())
    spent = time.thread_time() - began
    assert np.array_equal(back, pages)
    assert spent < 2.0  # Python objects take many times that


def test_shown_short() -> None:
    assert repr(PageRuns.of([1, 2, 9])) == "PageRuns(3 pages: 1+2, 9+1)"
