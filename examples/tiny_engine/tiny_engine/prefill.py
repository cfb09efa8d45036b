"""Prefill, chunk by chunk, so that a caller can send pages while later ones are computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tiny_engine.kv_cache import PagedKvCache
from tiny_engine.model import Model
from tiny_engine.sampling import Sampler


@dataclass(frozen=True)
class PrefillChunk:
    """A computed chunk. `pages` are final: nothing of this prefill writes to them again.

    Only the last chunk may end inside a page; that page is then zero behind the last token.
    """

    start_position: int
    token_count: int
    first_page: int  # index of pages[0] in the request's page table
    pages: tuple[int, ...]
    last: bool

    def pages_after(self, prefix_pages: int) -> tuple[int, ...]:
        """Those of `pages` behind the first `prefix_pages` of the request.

        For a receiver that has these already; may be empty.
        """
        return self.pages[max(0, prefix_pages - self.first_page) :]


class Prefill:
    """The prefill of one prompt into pages that the caller allocated. Not thread-safe.

    `page_table` has a page for every `page_tokens` tokens of the prompt, rounded up. The first
    `cached_tokens`, whole pages and fewer than the prompt, are taken as present in their pages.
    Bad arguments raise ValueError here.
    """

    def __init__(
        self,
        model: Model,
        cache: PagedKvCache,
        tokens: Sequence[int],
        page_table: Sequence[int],
        cached_tokens: int = 0,
    ) -> None:
        page_tokens = cache.layout.page_tokens
        if model.chunk_tokens % page_tokens:
            raise ValueError("the chunk size must be a multiple of the page size")
        if not tokens:
            raise ValueError("a prompt must have at least one token")
        if len(page_table) < -(-len(tokens) // page_tokens):
            raise ValueError(f"{len(page_table)} pages are too few for {len(tokens)} tokens")
        if not 0 <= cached_tokens < len(tokens) or cached_tokens % page_tokens:
            raise ValueError(f"{cached_tokens} cached tokens of {len(tokens)} are not whole pages")
        self._model = model
        self._cache = cache
        self._tokens = list(tokens)
        self._pages = list(page_table)
        self._position = cached_tokens
        self._hidden: np.ndarray | None = None

    def chunks(self) -> Iterator[PrefillChunk]:
        """Computes one chunk for each value that it yields; at least one."""
        page_tokens = self._cache.layout.page_tokens
        size = self._model.chunk_tokens
        while self._position < len(self._tokens):
            start = self._position
            stop = min(start - start % size + size, len(self._tokens))
            hidden = self._model.prefill_chunk(
                self._cache, self._tokens[start:stop], start, self._pages
            )
            self._position = stop
            self._hidden = hidden[-1:]
            first, end = start // page_tokens, -(-stop // page_tokens)
            last = stop == len(self._tokens)
            yield PrefillChunk(start, stop - start, first, tuple(self._pages[first:end]), last)

    def run(self) -> list[PrefillChunk]:
        """Computes all chunks at once."""
        return list(self.chunks())

    def first_token(self, sampler: Sampler) -> int:
        """The token after the prompt. Raises RuntimeError before the last chunk is done."""
        if self._position < len(self._tokens) or self._hidden is None:
            raise RuntimeError("the prefill is not done")
        return sampler.choose(self._model.logits(self._hidden)[0])
