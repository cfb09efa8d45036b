"""Matrix products whose rows do not depend on each other, and small functions of rows.

BLAS picks its kernel, and with it the order of its sums, by the shapes of a product. So every
product here has one fixed number of rows, a group, filled up with zeros where there are fewer. What
a row gives then cannot depend on how many others there are or on what they hold. That it does not
depend on its place in the group either is a property of the kernel; `slots_agree` checks it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def linear(x: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """`x`, [groups, rows, inputs], times a matrix in blocks: [groups, rows, outputs].

    One BLAS call for each group and block, so `groups` changes no bit of a row.
    """
    product = np.matmul(x[:, None], blocks)
    groups, count, rows, width = product.shape
    return product.transpose(0, 2, 1, 3).reshape(groups, rows, count * width)


def rms_norm(x: np.ndarray, weight: np.ndarray, epsilon: np.float32) -> np.ndarray:
    """Root-mean-square norm over the last dimension."""
    mean = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean + epsilon) * weight


def gated(both: np.ndarray) -> np.ndarray:
    """silu(gate) * up, where gate and up are the halves of the last dimension."""
    half = both.shape[-1] // 2
    gate, up = both[..., :half], both[..., half:]
    return gate / (1 + np.exp(-gate)) * up


def softmax(scores: np.ndarray) -> np.ndarray:
    """Softmax over the last dimension, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def slots_agree(matrices: Iterable[np.ndarray], rows: int) -> bool:
    """Whether a row gives the same bits in every one of `rows` places, beside other neighbours.

    Runs every matrix (in blocks) with fixed random numbers on this machine's BLAS.
    """
    random = np.random.default_rng(1)
    for matrix in matrices:
        row = random.standard_normal(matrix.shape[1], dtype=np.float32)
        results = []
        for slot in range(rows):
            x = random.standard_normal((1, rows, row.size), dtype=np.float32)
            x[0, slot] = row
            results.append(linear(x, matrix)[0, slot].tobytes())
        if len(set(results)) != 1:
            return False
    return True
