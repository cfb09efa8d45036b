"""The proof: the same prompts in one process without Pageferry, compared token by token and page
by page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tiny_engine.demo_rooms import Room
from tiny_engine.kv_cache import KvLayout, PagedKvCache, page_digests
from tiny_engine.model import Model
from tiny_engine.reference import ReferencePrompt, ReferenceResult, run_reference


@dataclass
class Proof:
    """What was compared, and what differed."""

    answers: int = 0
    tokens: int = 0
    pages: int = 0
    moved_pages: int = 0
    page_bytes: int = 0
    differences: list[str] = field(default_factory=list)


def prove(
    model: Model,
    rooms: Sequence[Room],
    stop_tokens: frozenset[int],
    progress: Callable[[int], None],
) -> Proof:
    """Computes every answered room again and compares; notes the outcome in the rooms.

    Prompts run one after the other, each alone, and share prefixes as the engines do.
    `progress` is called with the number of each prompt when it begins.
    """
    answered = [room for room in rooms if room.state == "done"]
    page_tokens = 16
    needed = [-(-(len(room.tokens) + room.max_tokens) // page_tokens) for room in answered]
    config = model.config
    num_pages = max(1, sum(needed))
    layout = KvLayout(
        config.layers, num_pages, config.kv_heads, config.head_dim, page_tokens, "float16"
    )
    proof = Proof(page_bytes=layout.item_bytes * len(layout.entries))

    def prompts() -> Iterator[ReferencePrompt]:
        for room in answered:
            progress(room.number)
            sampler = replace(room.sampler)
            yield ReferencePrompt(room.id, room.tokens, room.max_tokens, sampler)

    cache = PagedKvCache.allocate(layout)
    expected = run_reference(model, cache, prompts(), stop_tokens, share_prefixes=True)
    for room in answered:
        _compare(room, expected[room.id], proof)
    return proof


def _compare(room: Room, expected: ReferenceResult, proof: Proof) -> None:
    proof.answers += 1
    proof.tokens += len(expected.tokens)
    room.tokens_equal = tuple(room.output) == expected.tokens
    if not room.tokens_equal:
        at = next(
            (
                i
                for i, (a, b) in enumerate(zip(room.output, expected.tokens, strict=False))
                if a != b
            ),
            min(len(room.output), len(expected.tokens)),
        )
        proof.differences.append(
            f"prompt {room.number}, room {room.id}: answers differ at token {at}"
        )
    digests = page_digests(expected.kv_pages)
    proof.pages += len(digests)
    proof.moved_pages += room.pages
    room.pages_equal = room.digests == digests
    if not room.pages_equal:
        wrong = [i for i, digest in enumerate(digests) if room.digests[i : i + 1] != [digest]]
        proof.differences.append(
            f"prompt {room.number}, room {room.id}: pages {wrong} of {len(digests)} differ "
            f"({room.cached_pages} were cached)"
        )
