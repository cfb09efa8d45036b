"""Page lists and their runs."""

import time

import numpy as np
import pytest
from pageferry import PageRuns
from pageferry.errors import InvalidArgument


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
    assert PageRuns.from_proto(runs.to_proto()) == runs


@pytest.mark.parametrize("seed", range(5))
def test_random_lists_come_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pages = rng.permutation(rng.integers(1, 300))[: rng.integers(0, 300)]
    runs = PageRuns.of(pages.astype(np.uint32))
    assert np.array_equal(runs.pages(), pages)
    assert PageRuns.from_pairs(runs.pairs()) == runs
    runs.check_distinct()
    pieces = runs.split(3)
    assert all(len(piece) <= 3 for piece in pieces)
    assert np.array_equal(np.concatenate([piece.pages() for piece in pieces]), pages)


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
    spent = time.thread_time() - began
    assert np.array_equal(back, pages)
    assert spent < 0.5  # a Python loop would take seconds


def test_shown_short() -> None:
    assert repr(PageRuns.of([1, 2, 9])) == "PageRuns(3 pages: 1+2, 9+1)"
