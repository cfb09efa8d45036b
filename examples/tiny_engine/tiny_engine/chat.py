"""Answers one prompt on the terminal, as the tokens come: `python -m tiny_engine.chat "Hi"`."""

from __future__ import annotations

import argparse
import sys
import time

from tiny_engine.decode import DecodeBatch, DecodeRequest
from tiny_engine.kv_cache import KvLayout, PagedKvCache
from tiny_engine.model import Model
from tiny_engine.model_file import ModelUnavailableError, progress
from tiny_engine.pages import PageAllocator
from tiny_engine.prefill import Prefill
from tiny_engine.sampling import Sampler
from tiny_engine.tokenizer import SYSTEM_PROMPT, StreamDecoder, load_tokenizer
from tiny_engine.weights import load_weights


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tiny_engine.chat")
    parser.add_argument("prompt", help="what to ask")
    parser.add_argument("--system", default=SYSTEM_PROMPT, help="the system message")
    parser.add_argument("--max-tokens", type=int, default=256, help="longest answer, in tokens")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--top-k", type=int, default=0, help="0 draws from the whole vocabulary")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stats", action="store_true", help="print times to standard error")
    options = parser.parse_args(arguments)
    try:
        sampler = Sampler(options.temperature, options.top_k, options.seed)
    except ValueError as error:
        parser.error(str(error))
    if options.max_tokens < 1:
        parser.error("--max-tokens must be at least 1")
    try:
        return _answer(options, sampler)
    except ModelUnavailableError as error:
        progress(f"error: {error}")
        return 1


def _answer(options: argparse.Namespace, sampler: Sampler) -> int:
    begin = time.perf_counter()
    model, tokenizer = Model(load_weights()), load_tokenizer()
    tokens = tokenizer.encode_chat(options.prompt, options.system)
    longest = model.config.context_tokens - model.chunk_tokens
    if len(tokens) + options.max_tokens > longest:
        progress(f"error: prompt and answer together may have {longest} tokens")
        return 1
    num_pages = -(-(len(tokens) + options.max_tokens) // 16)
    config = model.config
    layout = KvLayout(config.layers, num_pages, config.kv_heads, config.head_dim)
    cache, allocator = PagedKvCache.allocate(layout), PageAllocator(num_pages)
    pages = allocator.allocate(-(-len(tokens) // layout.page_tokens))

    loaded = time.perf_counter()
    prefill = Prefill(model, cache, tokens, pages)
    prefill.run()
    request = DecodeRequest(
        room_id=1,
        prompt_tokens=len(tokens),
        first_token=prefill.first_token(sampler),
        pages=pages,
        max_new_tokens=options.max_tokens,
        stop_tokens=tokenizer.stop_tokens,
        sampler=sampler,
    )
    first = time.perf_counter()
    stream = StreamDecoder(tokenizer)
    print(stream.push(request.output[0]), end="", flush=True)
    batch = DecodeBatch(model, cache, allocator)
    if request.finish is None:
        batch.join(request)
    while len(batch):
        batch.step()
        print(stream.push(request.output[-1]), end="", flush=True)
    print(stream.finish())
    if options.stats:
        steps, took = len(request.output) - 1, time.perf_counter() - first
        rate = f"{steps / took:.1f} tokens/s" if steps else "no decode step"
        progress(
            f"start {loaded - begin:.2f} s, prefill {first - loaded:.2f} s "
            f"({len(tokens)} tokens), decode {rate}, finish {request.finish}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
