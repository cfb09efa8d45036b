"""What a single process computes: the answer that any split of the work must equal bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from tiny_engine.decode import DecodeBatch, DecodeRequest
from tiny_engine.kv_cache import PagedKvCache
from tiny_engine.model import Model
from tiny_engine.pages import PageAllocator, PrefixCache
from tiny_engine.prefill import Prefill
from tiny_engine.sampling import Sampler


@dataclass(frozen=True)
class ReferencePrompt:
    """One request; `sampler` is its state before the first token."""

    room_id: int
    tokens: tuple[int, ...]
    max_new_tokens: int = 32
    sampler: Sampler = field(default_factory=Sampler)


@dataclass(frozen=True)
class ReferenceResult:
    """`tokens` is the answer. `kv_pages` are the prompt's pages as prefill left them.

    The pages have the shape of `PagedKvCache.copy_pages`.
    """

    room_id: int
    tokens: tuple[int, ...]
    kv_pages: np.ndarray
    cached_tokens: int


def run_reference(
    model: Model,
    cache: PagedKvCache,
    prompts: Iterable[ReferencePrompt],
    stop_tokens: frozenset[int],
    share_prefixes: bool = False,
) -> dict[int, ReferenceResult]:
    """Runs prompts one after the other, each alone, in pages of `cache`; by room id.

    With `share_prefixes` a prompt reuses the pages that an earlier one left. The cache must have
    pages for the longest prompt and answer, and for the shared prefixes; else OutOfPagesError.
    """
    allocator = PageAllocator(cache.layout.num_pages)
    known = PrefixCache(cache.layout.page_tokens)
    results: dict[int, ReferenceResult] = {}
    for prompt in prompts:
        count = len(prompt.tokens)
        shared = known.match(prompt.tokens, count - 1) if share_prefixes else []
        needed = -(-count // cache.layout.page_tokens)
        pages = shared + allocator.allocate(needed - len(shared))
        cached_tokens = len(shared) * cache.layout.page_tokens
        prefill = Prefill(model, cache, prompt.tokens, pages, cached_tokens)
        prefill.run()
        sampler = replace(prompt.sampler)
        request = DecodeRequest(
            room_id=prompt.room_id,
            prompt_tokens=count,
            first_token=prefill.first_token(sampler),
            pages=list(pages),
            max_new_tokens=prompt.max_new_tokens,
            stop_tokens=stop_tokens,
            sampler=sampler,
        )
        kv_pages = cache.copy_pages(pages)
        batch = DecodeBatch(model, cache, allocator)
        if request.finish is None:
            batch.join(request)
        while len(batch):
            batch.step()
        results[prompt.room_id] = ReferenceResult(
            prompt.room_id, tuple(request.output), kv_pages, cached_tokens
        )
        kept = set(shared)
        if share_prefixes:
            kept.update(known.insert(prompt.tokens, pages))
        allocator.free(page for page in request.pages if page not in kept)
    return results
