"""How well the model predicts a text: the number that a wrong forward pass cannot fake."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tiny_engine.kv_cache import KvLayout, PagedKvCache
from tiny_engine.model import Model


def perplexity(model: Model, tokens: Sequence[int], dtype: str = "float16") -> float:
    """exp of the mean negative log chance of tokens[1:], each given all before it."""
    if len(tokens) < 2:
        raise ValueError("perplexity needs at least two tokens")
    config = model.config
    layout = KvLayout(
        layers=config.layers,
        num_pages=-(-len(tokens) // 16),
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
    )
    cache = PagedKvCache.allocate(layout)
    table = range(layout.num_pages)
    loss = 0.0
    for start in range(0, len(tokens), model.chunk_tokens):
        part = tokens[start : start + model.chunk_tokens]
        targets = tokens[start + 1 : start + 1 + len(part)]
        logits = model.logits(model.prefill_chunk(cache, part, start, table))
        logits = logits[: len(targets)].astype(np.float64)
        top = logits.max(axis=1, keepdims=True)
        total = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
        loss += float((total - logits[np.arange(len(targets)), targets]).sum())
    return math.exp(loss / (len(tokens) - 1))
