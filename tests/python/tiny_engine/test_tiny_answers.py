"""That the forward pass is right: answers make sense, and text is predicted as it should be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tiny_engine.evaluate import perplexity
from tiny_engine.kv_cache import PagedKvCache
from tiny_engine.model import Model
from tiny_engine.reference import ReferencePrompt, run_reference
from tiny_engine.tokenizer import ChatTokenizer
from tiny_engine.weights import Weights

TEXT = (
    "The river begins as a small stream in the hills and grows as it moves toward the sea. Along "
    "its banks people have built farms, villages and a few large towns. In spring the snow melts "
    "and the water rises, and in some years it floods the fields. Farmers know this well, and they "
    "plant their crops on higher ground. In summer the river is slow and warm, and children swim "
    "in it after school. Fish live in the deep pools under the trees, where the water stays cool "
    "even on the hottest days of the year."
)
# Measured: 21.3. Rotary pairs in the wrong order give 110, no mask (the future is seen) gives 4.7.
PERPLEXITY_BOUNDS = (18.0, 25.0)


def within_bounds(value: float) -> bool:
    return PERPLEXITY_BOUNDS[0] < value < PERPLEXITY_BOUNDS[1]


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ("What is the capital of France?", "Paris"),
        ("What colour is the sky on a clear day? Answer in one sentence.", "blue"),
        ("Which planet do we live on?", "Earth"),
    ],
)
def test_answers_are_sensible(
    model: Model,
    tokenizer: ChatTokenizer,
    make_cache: Callable[..., PagedKvCache],
    prompt: str,
    word: str,
) -> None:
    tokens = tuple(tokenizer.encode_chat(prompt))
    asked = [ReferencePrompt(1, tokens, max_new_tokens=40)]
    result = run_reference(model, make_cache(), asked, tokenizer.stop_tokens)[1]
    assert word in tokenizer.decode(result.tokens)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_perplexity(model: Model, tokenizer: ChatTokenizer, dtype: str) -> None:
    assert within_bounds(perplexity(model, tokenizer.encode(TEXT), dtype))


def test_perplexity_tells_the_rotary_order(weights: Weights, tokenizer: ChatTokenizer) -> None:
    wrong = Model(weights, rotary_pairs="halves")
    assert perplexity(wrong, tokenizer.encode(TEXT)) > 2 * PERPLEXITY_BOUNDS[1]


def test_perplexity_tells_a_missing_mask(weights: Weights, tokenizer: ChatTokenizer) -> None:
    wrong = Model(weights)
    wrong._mask = np.zeros_like(wrong._mask)
    assert perplexity(wrong, tokenizer.encode(TEXT)) < PERPLEXITY_BOUNDS[0] / 2
