"""Pages of an engine: free, in use by requests, or kept for prompts that begin the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tiny_engine.pages import OutOfPagesError, PageAllocator, PrefixCache


@dataclass
class Lease:
    """The pages of one request in order; the first `cached` of them were there already."""

    pages: list[int]
    cached: int
    shared: set[int] = field(default_factory=set)


class PageStore(PageAllocator):
    """A free list that keeps finished prompts' pages as long as nobody needs the room.

    Kept pages are counted by their users and are never given out while there is one; of the others
    the longest unused goes first. Not thread-safe.
    """

    def __init__(self, num_pages: int, page_tokens: int, shuffle_seed: int | None = None) -> None:
        super().__init__(num_pages, shuffle_seed)
        self.num_pages = num_pages
        self._known = PrefixCache(page_tokens)
        self._users: OrderedDict[int, int] = OrderedDict()  # kept pages, longest unused first

    @property
    def kept_count(self) -> int:
        """Pages that are kept and have no user now."""
        return sum(1 for users in self._users.values() if not users)

    @property
    def leased_count(self) -> int:
        """Pages that some request uses."""
        return self.num_pages - self.free_count - self.kept_count

    def lease(self, tokens: Sequence[int], count: int, limit_tokens: int | None = None) -> Lease:
        """Takes `count` pages for a prompt; known ones in front, as far as `limit_tokens`.

        Raises OutOfPagesError, and takes none, if there are too few.
        """
        shared = self._known.match(tokens, limit_tokens)
        self._use(shared, 1)
        try:
            own = self.allocate(count - len(shared))
        except OutOfPagesError:
            self._use(shared, -1)
            raise
        return Lease([*shared, *own], len(shared), set(shared))

    def keep(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Makes the prompt's whole pages, final now, known to later leases."""
        new = self._known.insert(tokens, lease.pages)
        self._users.update((page, 0) for page in new)
        self._use(new, 1)
        lease.shared.update(new)

    def give_back(self, lease: Lease) -> None:
        """Ends a lease. Its kept pages stay kept, the others are free."""
        self._use([page for page in lease.pages if page in lease.shared], -1)
        self.free(page for page in lease.pages if page not in lease.shared)
        lease.pages, lease.shared = [], set()

    def allocate(self, count: int) -> list[int]:
        """As PageAllocator does, after giving up kept pages where it takes some."""
        lacking = count - self.free_count
        if 0 < lacking <= self.kept_count:
            idle = [page for page, users in self._users.items() if not users][:lacking]
            for page in idle:
                del self._users[page]
            self._known.forget(idle)
            self.free(idle)
        return super().allocate(count)

    def _use(self, pages: Iterable[int], change: int) -> None:
        """Counts users. The end of a prefix is the older: alone it would be of no use."""
        for page in reversed(list(pages)):
            self._users[page] += change
            self._users.move_to_end(page)
