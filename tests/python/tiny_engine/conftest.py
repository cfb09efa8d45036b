"""Fixtures of the example engine's tests: the real model, loaded once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# The engine, the fake agent, and the client library where it is not installed.
sys.path.extend(
    str(Path(__file__).resolve().parents[3] / folder)
    for folder in ("examples/tiny_engine", "tests/python/client", "clients/python/src")
)

import tiny_engine  # noqa: F401 - holds BLAS to one thread, before NumPy where possible
from tiny_engine.kv_cache import KvLayout, PagedKvCache
from tiny_engine.model import Model
from tiny_engine.model_file import ModelUnavailableError
from tiny_engine.tokenizer import ChatTokenizer, load_tokenizer
from tiny_engine.weights import Weights, load_weights

CacheMaker = Callable[..., PagedKvCache]


@pytest.fixture(scope="session")
def weights() -> Weights:
    try:
        return load_weights()
    except ModelUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the model file cannot be had: {error}")


@pytest.fixture(scope="session")
def tokenizer(weights: Weights) -> ChatTokenizer:
    return load_tokenizer()


@pytest.fixture(scope="session")
def model(weights: Weights) -> Model:
    return Model(weights)


@pytest.fixture
def make_cache(model: Model) -> CacheMaker:
    """Makes caches full of noise, as memory that others used before would be."""

    def make(num_pages: int = 32, dtype: str = "float16") -> PagedKvCache:
        import numpy as np

        config = model.config
        layout = KvLayout(config.layers, num_pages, config.kv_heads, config.head_dim, dtype=dtype)
        noise = np.random.default_rng(num_pages).standard_normal(layout.total_bytes // 4)
        return PagedKvCache(noise.astype(np.float32).view(np.uint8), layout)

    return make
