"""Choosing the next token: greedy, or drawn by a generator whose whole state is two numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_MASK = (1 << 64) - 1


def uniform(seed: int, counter: int) -> float:
    """The draw number `counter` of `seed`, in [0, 1): SplitMix64, the same on every machine."""
    z = (seed + (counter + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


@dataclass
class Sampler:
    """Chooses one request's tokens. Its fields are its whole state, so they can travel in aux.

    `temperature` 0 is greedy. `top_k` 0 draws from the whole vocabulary. `seed` is in [0, 2^64).
    `counter` is how many tokens were chosen so far.
    """

    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0
    counter: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.temperature < float("inf")) or self.top_k < 0:
            raise ValueError("temperature and top_k must not be negative")
        if not 0 <= self.seed <= _MASK or self.counter < 0:
            raise ValueError("seed must be in [0, 2^64) and counter not negative")

    def choose(self, logits: np.ndarray) -> int:
        """The next token for `logits`, [vocabulary]; of equal logits the lowest token wins."""
        draw = uniform(self.seed, self.counter)
        self.counter += 1
        if self.temperature == 0:
            return int(np.argmax(logits))
        order = np.argsort(-logits, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        scaled = logits[order].astype(np.float64) / self.temperature
        chances = np.cumsum(np.exp(scaled - scaled[0]))
        index = int(np.searchsorted(chances, draw * chances[-1], side="right"))
        return int(order[min(index, len(order) - 1)])
