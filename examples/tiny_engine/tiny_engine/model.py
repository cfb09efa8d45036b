"""The forward pass, written so that one token's numbers never depend on its company.

- Prefill works on chunks cut at absolute multiples of `chunk_tokens`. A token at position p always
  has the same place in row groups and sees keys padded to the same length, its chunk's end. A
  cached prefix, or a prompt that ends early, leaves rows empty; it moves and resizes nothing.
- Decode fills groups of `DECODE_ROWS` rows whoever is there; attention runs for each row by itself
  in shapes that depend on that row's own length only. See `linear` for why that is enough.

Attention reads K and V back from the cache in the cache's type, also for tokens just written, so
that pages moved to another process are all that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tiny_engine.kv_cache import PagedKvCache
from tiny_engine.linear import gated, linear, rms_norm, slots_agree, softmax
from tiny_engine.model_file import progress
from tiny_engine.weights import LayerWeights, Weights

DECODE_ROWS = 8
PREFILL_ROWS = 16

RotaryPairs = Literal["adjacent", "halves"]


@dataclass(frozen=True)
class DecodeRow:
    """One request's part of a decode step: `token` at `position`, and its pages in order."""

    token: int
    position: int
    pages: np.ndarray


class Model:
    """Runs the model over a cache that the caller owns. Holds no state of any request.

    Thread-safe for calls on different caches. `rotary_pairs` is "adjacent" for this file format
    (dimensions 2i and 2i+1 turn together); "halves" exists for the test that tells them apart.
    """

    def __init__(
        self, weights: Weights, chunk_tokens: int = 64, rotary_pairs: RotaryPairs = "adjacent"
    ) -> None:
        if chunk_tokens < 1 or chunk_tokens % PREFILL_ROWS:
            raise ValueError(f"the chunk size must be a multiple of {PREFILL_ROWS} tokens")
        config = weights.config
        self.config = config
        self.chunk_tokens = chunk_tokens
        self._weights = weights
        self._pairs = rotary_pairs
        self._group = config.heads // config.kv_heads
        self._scale = np.float32(config.head_dim**-0.5)
        self._epsilon = np.float32(config.norm_epsilon)
        exponent = np.arange(0, config.head_dim, 2) / config.head_dim
        angle = np.outer(np.arange(config.context_tokens), config.rope_base**-exponent)
        self._cos = np.cos(angle).astype(np.float32)[:, None, :]
        self._sin = np.sin(angle).astype(np.float32)[:, None, :]
        future = np.triu(np.ones((chunk_tokens, chunk_tokens), dtype=bool), 1)
        self._mask = np.where(future, np.float32(-np.inf), np.float32(0))
        first = weights.layers[0]
        shapes = (first.qkv, first.output, first.gate_up, first.down, weights.vocabulary[:2])
        self.slots_agree = slots_agree(shapes, DECODE_ROWS)
        if not self.slots_agree:
            progress("this BLAS depends on a row's place: decoding rows one by one, slowly")

    def prefill_chunk(
        self,
        cache: PagedKvCache,
        tokens: Sequence[int],
        start_position: int,
        page_table: Sequence[int],
    ) -> np.ndarray:
        """Computes and stores `tokens`, which begin at `start_position`.

        `page_table` holds the pages of the request from position 0 on, at least to the end of
        `tokens`; everything before `start_position` must be in them. The tokens must lie within
        one chunk (ValueError). Slots behind the last token, to the end of its page, are zeroed.
        Returns the hidden states, [len(tokens), hidden], for `logits`.
        """
        config, page_tokens = self.config, cache.layout.page_tokens
        begin = start_position % self.chunk_tokens
        end = begin + len(tokens)
        chunk_start = start_position - begin
        stop_position = chunk_start + end
        page_count = -(-stop_position // page_tokens)
        if begin >= end or end > self.chunk_tokens:
            raise ValueError(f"tokens {begin}..{end} do not lie in one chunk")
        if chunk_start + self.chunk_tokens > config.context_tokens:
            raise ValueError(f"position {stop_position} is beyond the model's context")
        if page_count > len(page_table):
            raise ValueError(f"{page_count} pages needed, {len(page_table)} given")
        pages = np.asarray(page_table[:page_count], dtype=np.int64)
        positions = np.arange(start_position, stop_position)
        at = (pages[positions // page_tokens], positions % page_tokens)
        if stop_position % page_tokens:
            cache.clear_tail(int(pages[-1]), stop_position % page_tokens)

        # Only row groups with tokens in them are computed: rows first..last of the chunk.
        first = begin - begin % PREFILL_ROWS
        last = end + -end % PREFILL_ROWS
        mine = slice(begin - first, end - first)
        hidden = np.zeros((last - first, config.hidden), dtype=np.float32)
        hidden[mine] = self._weights.embed(np.asarray(tokens))
        hidden = hidden.reshape(-1, PREFILL_ROWS, config.hidden)
        turn = slice(chunk_start + first, chunk_start + last)
        keys = np.zeros(
            (2, chunk_start + self.chunk_tokens, config.kv_heads, config.head_dim), np.float32
        )
        with np.errstate(over="ignore"):
            for index, layer in enumerate(self._weights.layers):
                q, k, v = self._project(layer, hidden, turn)
                cache.write(index, *at, k[mine], v[mine])
                for kind in (0, 1):
                    keys[kind, :stop_position] = cache.read(index, kind, pages)[:stop_position]
                mixed = self._attend_chunk(q, keys[0], keys[1], first)
                hidden += linear(mixed.reshape(hidden.shape), layer.output)
                hidden += self._feed_forward(layer, hidden)
        return hidden.reshape(-1, config.hidden)[mine]

    def decode(self, cache: PagedKvCache, rows: Sequence[DecodeRow]) -> list[np.ndarray]:
        """One step for each row: stores its token's K and V, returns its logits, [vocabulary].

        Each row's `pages` must reach to its position; no two rows may share the page they write.
        """
        size = DECODE_ROWS if self.slots_agree else 1
        logits: list[np.ndarray] = []
        for begin in range(0, len(rows), size):
            logits += self._decode_group(cache, rows[begin : begin + size])
        return logits

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """Logits, [count, vocabulary], of hidden states, [count, hidden]."""
        width = self.config.hidden
        size = DECODE_ROWS if self.slots_agree else 1
        results = []
        for begin in range(0, len(hidden), size):
            part = hidden[begin : begin + size]
            padded = np.zeros((1, DECODE_ROWS, width), dtype=np.float32)
            padded[0, : len(part)] = part
            normed = rms_norm(padded, self._weights.final_norm, self._epsilon)
            results.append(linear(normed, self._weights.vocabulary)[0, : len(part)])
        return np.concatenate(results)

    def _decode_group(self, cache: PagedKvCache, rows: Sequence[DecodeRow]) -> list[np.ndarray]:
        config, count, page_tokens = self.config, len(rows), cache.layout.page_tokens
        hidden = np.zeros((1, DECODE_ROWS, config.hidden), dtype=np.float32)
        hidden[0, :count] = self._weights.embed(np.asarray([row.token for row in rows]))
        positions = np.zeros(DECODE_ROWS, dtype=np.int64)
        positions[:count] = [row.position for row in rows]
        pages = [row.pages[: row.position // page_tokens + 1] for row in rows]
        at = (np.asarray([own[-1] for own in pages]), positions[:count] % page_tokens)
        mixed = np.zeros((DECODE_ROWS, config.heads * config.head_dim), dtype=np.float32)
        with np.errstate(over="ignore"):
            for index, layer in enumerate(self._weights.layers):
                q, k, v = self._project(layer, hidden, positions)
                cache.write(index, *at, k[:count], v[:count])
                for number, row in enumerate(rows):
                    length = row.position + 1
                    keys = cache.read(index, 0, pages[number])[:length]
                    values = cache.read(index, 1, pages[number])[:length]
                    mixed[number] = self._attend_row(q[number], keys, values)
                hidden += linear(mixed[None], layer.output)
                hidden += self._feed_forward(layer, hidden)
        return list(self.logits(hidden[0, :count]))

    def _attend_row(self, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Attention of one token; q [heads, dim], keys and values [length, kv_heads, dim]."""
        config = self.config
        grouped = (q * self._scale).reshape(config.kv_heads, self._group, config.head_dim)
        weights = softmax(np.matmul(grouped, keys.transpose(1, 2, 0)))
        return np.matmul(weights, values.transpose(1, 0, 2)).reshape(-1)

    def _attend_chunk(
        self, q: np.ndarray, keys: np.ndarray, values: np.ndarray, first: int
    ) -> np.ndarray:
        """Causal attention of some rows of a chunk, from row `first` on: [rows, heads * dim].

        q is [rows, heads, dim]; keys and values are [length, kv_heads, dim] to the chunk's end.
        Products run over groups of PREFILL_ROWS tokens, like all others.
        """
        config, rows = self.config, len(q)
        shape = (-1, PREFILL_ROWS, config.kv_heads, self._group, config.head_dim)
        grouped = (q * self._scale).reshape(shape).transpose(0, 2, 3, 1, 4)
        grouped = grouped.reshape(-1, config.kv_heads, self._group * PREFILL_ROWS, config.head_dim)
        scores = np.matmul(grouped, keys.transpose(1, 2, 0))
        split = (-1, config.kv_heads, self._group, PREFILL_ROWS, len(keys))
        scores = scores.reshape(split)
        mask = self._mask[first : first + rows].reshape(-1, 1, 1, PREFILL_ROWS, self.chunk_tokens)
        scores[..., -self.chunk_tokens :] += mask
        weights = softmax(scores).reshape(-1, config.kv_heads, split[2] * split[3], len(keys))
        mixed = np.matmul(weights, values.transpose(1, 0, 2))
        mixed = mixed.reshape(-1, config.kv_heads, self._group, PREFILL_ROWS, config.head_dim)
        return mixed.transpose(0, 3, 1, 2, 4).reshape(rows, -1)

    def _project(
        self, layer: LayerWeights, hidden: np.ndarray, turn: slice | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Queries, keys and values, [rows, heads, dim], turned to the positions `turn`."""
        config = self.config
        packed = linear(rms_norm(hidden, layer.attention_norm, self._epsilon), layer.qkv)
        packed = packed.reshape(-1, config.heads + 2 * config.kv_heads, config.head_dim)
        turning = config.heads + config.kv_heads
        turned = self._rotate(packed[:, :turning], self._cos[turn], self._sin[turn])
        return turned[:, : config.heads], turned[:, config.heads :], packed[:, turning:]

    def _rotate(self, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        """Turns each pair of dimensions of x, [rows, heads, dim]."""
        out = np.empty_like(x)
        if self._pairs == "adjacent":
            first, second = np.s_[..., 0::2], np.s_[..., 1::2]
        else:
            half = self.config.head_dim // 2
            first, second = np.s_[..., :half], np.s_[..., half:]
        out[first] = x[first] * cos - x[second] * sin
        out[second] = x[first] * sin + x[second] * cos
        return out

    def _feed_forward(self, layer: LayerWeights, hidden: np.ndarray) -> np.ndarray:
        both = linear(rms_norm(hidden, layer.feed_forward_norm, self._epsilon), layer.gate_up)
        return linear(gated(both), layer.down)
