"""Bit for bit: a token's K, V and logits do not depend on chunks before, neighbours or places."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tiny_engine.aux import AuxRow
from tiny_engine.decode import DecodeBatch, DecodeRequest
from tiny_engine.kv_cache import PagedKvCache
from tiny_engine.model import DECODE_ROWS, DecodeRow, Model
from tiny_engine.pages import PageAllocator
from tiny_engine.prefill import Prefill
from tiny_engine.reference import ReferencePrompt, run_reference
from tiny_engine.sampling import Sampler
from tiny_engine.tokenizer import ChatTokenizer
from tiny_engine.weights import Weights

CacheMaker = Callable[..., PagedKvCache]


@pytest.fixture(scope="module")
def prompt(tokenizer: ChatTokenizer) -> list[int]:
    """A prompt of 150 tokens: two whole chunks and a part that ends inside a page."""
    text = "Tell me about rivers, mountains, and the people who live there. " * 20
    return tokenizer.encode_chat(text)[:150]


def prefill(
    model: Model, cache: PagedKvCache, tokens: list[int], pages: list[int], cached_tokens: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Runs a prefill; returns the pages' content and the last token's logits."""
    run = Prefill(model, cache, tokens, pages, cached_tokens)
    run.run()
    assert run._hidden is not None
    return cache.copy_pages(pages), model.logits(run._hidden)[0]


def scattered(cache: PagedKvCache, count: int, seed: int) -> list[int]:
    return PageAllocator(cache.layout.num_pages, shuffle_seed=seed).allocate(count)


def test_page_tables_do_not_matter(model: Model, make_cache: CacheMaker, prompt: list[int]) -> None:
    straight = prefill(model, make_cache(10), prompt, list(range(10)))
    cache = make_cache(40)
    crooked = prefill(model, cache, prompt, scattered(cache, 10, seed=7))
    assert np.array_equal(straight[0], crooked[0])
    assert np.array_equal(straight[1], crooked[1])


@pytest.mark.parametrize("cached_tokens", [16, 64, 80, 144])
def test_cached_prefix_changes_no_bit(
    model: Model, make_cache: CacheMaker, prompt: list[int], cached_tokens: int
) -> None:
    whole = prefill(model, make_cache(), prompt, list(range(10)))
    cache = make_cache()
    pages = scattered(cache, 10, seed=cached_tokens)
    prefix = pages[: cached_tokens // 16]
    cache.store_pages(prefix, whole[0][:, :, : len(prefix)])
    rest = prefill(model, cache, prompt, pages, cached_tokens)
    assert np.array_equal(whole[0], rest[0])
    assert np.array_equal(whole[1], rest[1])


def test_later_tokens_change_no_earlier_bit(
    model: Model, make_cache: CacheMaker, prompt: list[int]
) -> None:
    whole, _ = prefill(model, make_cache(), prompt, list(range(10)))
    for length in (37, 64, 100):
        part, _ = prefill(model, make_cache(), prompt[:length], list(range(10)))
        pages = length // 16
        assert np.array_equal(whole[:, :, :pages], part[:, :, :pages])
        rest = length % 16
        assert np.array_equal(whole[:, :, pages, :rest], part[:, :, pages, :rest])


def test_pieces_of_a_chunk_equal_the_whole(
    model: Model, make_cache: CacheMaker, prompt: list[int]
) -> None:
    """A token keeps its place in the row groups, wherever the work was cut before it."""
    whole, _ = prefill(model, make_cache(), prompt[:64], list(range(4)))
    cache = make_cache()
    for begin, end in ((0, 5), (5, 37), (37, 38), (38, 64)):
        model.prefill_chunk(cache, prompt[begin:end], begin, range(4))
    assert np.array_equal(whole, cache.copy_pages(range(4)))


def test_last_page_is_zero_behind_the_prompt(
    model: Model, make_cache: CacheMaker, prompt: list[int]
) -> None:
    content, _ = prefill(model, make_cache(), prompt, list(range(10)))
    assert not content[:, :, -1, len(prompt) % 16 :].any()
    assert content[:, :, -1, : len(prompt) % 16].any(axis=(-1, -2)).all()


def test_chunks_agree_with_one_whole_pass(
    model: Model, weights: Weights, make_cache: CacheMaker, prompt: list[int]
) -> None:
    pages = list(range(10))
    chunked = prefill(model, make_cache(dtype="float32"), prompt, pages)
    again = prefill(model, make_cache(dtype="float32"), prompt, pages)
    assert np.array_equal(chunked[0], again[0])
    whole = prefill(Model(weights, chunk_tokens=192), make_cache(dtype="float32"), prompt, pages)
    np.testing.assert_allclose(chunked[0], whole[0], rtol=0, atol=2e-3)
    np.testing.assert_allclose(chunked[1], whole[1], rtol=0, atol=2e-3)


def test_decode_continues_prefill(model: Model, make_cache: CacheMaker, prompt: list[int]) -> None:
    cache = make_cache()
    _, expected = prefill(model, cache, prompt, list(range(10)))
    prefill(model, cache, prompt[:-1], list(range(10)))
    row = DecodeRow(prompt[-1], len(prompt) - 1, np.arange(10))
    np.testing.assert_allclose(model.decode(cache, [row])[0], expected, rtol=0, atol=0.05)


def test_a_row_does_not_depend_on_its_batch(
    model: Model, make_cache: CacheMaker, prompt: list[int]
) -> None:
    """Every number of rows, every place, several contents: the same logits, K and V."""
    cache = make_cache(10 + 2 * DECODE_ROWS + 2)
    prefill(model, cache, prompt, list(range(10)))
    mine = DecodeRow(4321, len(prompt), np.arange(10))
    random = np.random.default_rng(3)
    seen: set[bytes] = set()
    for count in range(1, 2 * DECODE_ROWS + 2):
        for place in {0, count - 1, int(random.integers(count)), count % DECODE_ROWS % count}:
            rows = [
                DecodeRow(int(random.integers(49152)), int(random.integers(16)), np.array([10 + i]))
                for i in range(count)
            ]
            rows[place] = mine
            logits = model.decode(cache, rows)[place]
            page = cache.copy_pages([9])
            seen.add(hashlib.sha256(logits.tobytes() + page.tobytes()).digest())
    assert len(seen) == 1


def test_rows_one_by_one_when_places_matter(weights: Weights, make_cache: CacheMaker) -> None:
    """The way for a BLAS whose rows depend on their place gives the same here, only slower."""
    careful = Model(weights)
    careful.slots_agree = False
    cache = make_cache()
    rows = [DecodeRow(100 + i, 0, np.array([i])) for i in range(3)]
    normal = Model(weights).decode(cache, rows)
    assert all(map(np.array_equal, careful.decode(cache, rows), normal))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_split_engine_equals_one_process(
    model: Model, tokenizer: ChatTokenizer, make_cache: CacheMaker, temperature: float
) -> None:
    """Prefill in one cache, pages moved, decode in another with a batch that comes and goes."""
    questions = ["Name three colours.", "What is 2 + 2?", "Who wrote Hamlet?", "Say hello."]
    prompts = [
        ReferencePrompt(
            room_id=100 + number,
            tokens=tuple(tokenizer.encode_chat(text)),
            max_new_tokens=6 + number,
            sampler=Sampler(temperature, top_k=20 if temperature else 0, seed=number),
        )
        for number, text in enumerate(questions)
    ]
    stop = tokenizer.stop_tokens
    expected = run_reference(model, make_cache(), prompts, stop, share_prefixes=True)

    sender, receiver = make_cache(30), make_cache(64)
    free = PageAllocator(64, shuffle_seed=5)
    batch = DecodeBatch(model, receiver, free)
    done: dict[int, DecodeRequest] = {}
    for prompt in prompts:
        pages = scattered(sender, -(-len(prompt.tokens) // 16), seed=prompt.room_id)
        run = Prefill(model, sender, prompt.tokens, pages)
        run.run()
        sampler = replace(prompt.sampler)
        row = AuxRow(
            room_id=prompt.room_id,
            attempt=1,
            prompt_tokens=len(prompt.tokens),
            first_token=run.first_token(sampler),
            max_new_tokens=prompt.max_new_tokens,
            sampler=sampler,
        )
        content = sender.copy_pages(pages)
        assert np.array_equal(content, expected[prompt.room_id].kv_pages)

        landed = AuxRow.unpack(row.pack())
        own = free.allocate(len(pages))
        receiver.store_pages(own, content)
        request = DecodeRequest(
            landed.room_id,
            landed.prompt_tokens,
            landed.first_token,
            own,
            landed.max_new_tokens,
            stop,
            landed.sampler,
        )
        done[landed.room_id] = request
        if request.finish is None:
            batch.join(request)
        batch.step()
        batch.step()
    while len(batch):
        batch.step()
    assert {room: tuple(request.output) for room, request in done.items()} == {
        room: result.tokens for room, result in expected.items()
    }
