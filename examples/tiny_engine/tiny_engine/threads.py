"""Holds BLAS to one thread.

How many threads a BLAS uses decides how it cuts sums into parts, and so the last bits of a result.
An engine that must agree bit for bit with another process therefore uses exactly one.
"""

from __future__ import annotations

import os
import sys

_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

# Keeps the limit alive for the life of the process.
_limits: list[object] = []


def use_one_blas_thread() -> None:
    """Limits BLAS to one thread, whether or not NumPy is loaded already. Idempotent."""
    for name in _VARIABLES:
        os.environ[name] = "1"
    if "numpy" in sys.modules and not _limits:
        from threadpoolctl import threadpool_limits

        _limits.append(threadpool_limits(limits=1))
