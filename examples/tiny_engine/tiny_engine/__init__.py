"""A small, real LLM engine in NumPy, made to show Pageferry moving real KV cache pages.

Import this package before NumPy where you can: one BLAS thread is part of the promise that two
processes compute the same bits (see `threads`).
"""

from tiny_engine import threads

threads.use_one_blas_thread()
