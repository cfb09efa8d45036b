"""Requests that join, leave, and run out of pages; prefills that are cut into chunks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny_engine.decode import DecodeBatch, DecodeRequest
from tiny_engine.kv_cache import PagedKvCache
from tiny_engine.model import Model
from tiny_engine.pages import PageAllocator
from tiny_engine.prefill import Prefill
from tiny_engine.sampling import Sampler
from tiny_engine.tokenizer import ChatTokenizer

CacheMaker = Callable[..., PagedKvCache]


def test_chunks_cover_the_pages_once(
    model: Model, tokenizer: ChatTokenizer, make_cache: CacheMaker
) -> None:
    tokens = (tokenizer.encode("one two three four five ") * 30)[:150]
    pages = list(range(20, 30))
    run = Prefill(model, make_cache(), tokens, pages, cached_tokens=48)
    with pytest.raises(RuntimeError):
        run.first_token(Sampler())
    chunks = run.run()
    assert [(chunk.start_position, chunk.token_count) for chunk in chunks] == [
        (48, 16),
        (64, 64),
        (128, 22),
    ]
    assert [page for chunk in chunks for page in chunk.pages] == pages[3:]
    assert [chunk.last for chunk in chunks] == [False, False, True]
    assert chunks[1].pages_after(6) == (26, 27) and chunks[0].pages_after(6) == ()
    assert chunks[2].pages_after(6) == chunks[2].pages


def test_prefill_refuses_bad_arguments(model: Model, make_cache: CacheMaker) -> None:
    cache = make_cache()
    for tokens, pages, cached in (
        ([], [0], 0),
        ([1] * 17, [0], 0),
        ([1] * 17, [0, 1], 8),
        ([1] * 16, [0], 16),
    ):
        with pytest.raises(ValueError):
            Prefill(model, cache, tokens, pages, cached)
    with pytest.raises(ValueError):
        model.prefill_chunk(cache, [1] * 65, 0, list(range(8)))
    with pytest.raises(ValueError):
        model.prefill_chunk(cache, [1], model.config.context_tokens, list(range(32)))


def request(room_id: int, pages: list[int], max_new_tokens: int = 100) -> DecodeRequest:
    return DecodeRequest(room_id, 15, 500, pages, max_new_tokens)


def test_out_of_pages_ends_one_request_only(model: Model, make_cache: CacheMaker) -> None:
    cache, allocator = make_cache(3), PageAllocator(3)
    batch = DecodeBatch(model, cache, allocator)
    batch.join(request(1, allocator.allocate(1)))
    batch.join(request(2, allocator.allocate(1)))
    assert [result.finish for result in batch.step()] == [None, None]
    results = {result.room_id: result for result in batch.step()}
    assert results[1].finish is None and results[1].token is not None
    assert results[2].finish == "out_of_pages" and results[2].token is None
    assert [waiting.room_id for waiting in batch.requests] == [1]


def test_join_and_leave(model: Model, make_cache: CacheMaker) -> None:
    batch = DecodeBatch(model, make_cache(4), max_requests=2)
    assert batch.step() == []
    batch.join(request(1, [0]))
    with pytest.raises(ValueError):
        batch.join(request(1, [1]))
    with pytest.raises(ValueError):
        batch.join(request(3, [1], max_new_tokens=1))  # done with its first token
    batch.join(request(2, [1, 2], max_new_tokens=3))
    assert not batch.has_room
    with pytest.raises(ValueError):
        batch.join(request(4, [3]))
    batch.step()
    assert batch.leave(1).output[0] == 500
    assert [(result.room_id, result.finish) for result in batch.step()] == [(2, "length")]
    assert len(batch) == 0
    with pytest.raises(KeyError):
        batch.leave(2)


def test_stop_token_ends_a_request() -> None:
    done = DecodeRequest(1, 15, 7, [0], 9, stop_tokens=frozenset({7}))
    assert done.finish == "stop" and done.output == [7]
