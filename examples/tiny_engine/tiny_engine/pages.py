"""Page numbers: which are free, and which hold a prefix that a later prompt can use."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence

import numpy as np


class OutOfPagesError(RuntimeError):
    """More pages were asked for than are free. Nothing was taken."""


class PageAllocator:
    """A free list of page numbers 0..num_pages-1. Not thread-safe."""

    def __init__(self, num_pages: int, shuffle_seed: int | None = None) -> None:
        """`shuffle_seed` hands pages out in a scattered order, as a long-lived engine would."""
        self._free = list(range(num_pages))
        if shuffle_seed is not None:
            random.Random(shuffle_seed).shuffle(self._free)
        self._free.reverse()
        self._used: set[int] = set()

    @property
    def free_count(self) -> int:
        """Pages that can be taken now."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` pages. Raises OutOfPagesError, and takes none, if there are fewer."""
        if count < 0:
            raise ValueError(f"cannot allocate {count} pages")
        if count > len(self._free):
            raise OutOfPagesError(f"{count} pages asked for, {len(self._free)} free")
        pages = [self._free.pop() for _ in range(count)]
        self._used.update(pages)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Gives pages back.

        Raises ValueError, and frees none, if one is not in use or named twice.
        """
        given = list(pages)
        if len(set(given)) != len(given) or not self._used.issuperset(given):
            raise ValueError(f"pages freed that are not in use: {given}")
        self._used.difference_update(given)
        self._free.extend(reversed(given))


class PrefixCache:
    """Finds pages that already hold the start of a prompt. Not thread-safe; owns no page.

    A page's content depends on every token before it, so a page is known by a digest of all tokens
    up to its end. Only whole pages are known.
    """

    def __init__(self, page_tokens: int = 16) -> None:
        self._page_tokens = page_tokens
        self._pages: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    def match(self, tokens: Sequence[int], limit_tokens: int | None = None) -> list[int]:
        """Pages that hold the longest known prefix of `tokens`, in order; whole pages only.

        `limit_tokens` bounds the prefix: a prefill must compute at least the last token, so it
        passes len(tokens) - 1.
        """
        found: list[int] = []
        for key in self._chain(tokens[:limit_tokens]):
            page = self._pages.get(key)
            if page is None:
                break
            found.append(page)
        return found

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> list[int]:
        """Makes the whole pages of a finished prompt known; returns those that were new.

        The caller must keep the returned pages until it calls `forget` for them. A prefix that is
        known already keeps its first pages.
        """
        new: list[int] = []
        for key, page in zip(self._chain(tokens), pages, strict=False):
            if key not in self._pages and page not in self._keys:
                self._pages[key] = page
                self._keys[page] = key
                new.append(page)
        return new

    def forget(self, pages: Iterable[int]) -> None:
        """Drops pages that are about to be freed or overwritten; unknown ones are ignored."""
        for page in pages:
            key = self._keys.pop(page, None)
            if key is not None:
                del self._pages[key]

    def _chain(self, tokens: Sequence[int]) -> Iterable[bytes]:
        digest = b""
        size = self._page_tokens
        for end in range(size, len(tokens) + 1, size):
            part = np.asarray(tokens[end - size : end], dtype="<i4").tobytes()
            digest = hashlib.blake2b(digest + part, digest_size=16).digest()
            yield digest
