"""Continuous batching: requests join and leave between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tiny_engine.kv_cache import PagedKvCache
from tiny_engine.model import DecodeRow, Model
from tiny_engine.pages import OutOfPagesError, PageAllocator
from tiny_engine.sampling import Sampler

FinishReason = Literal["stop", "length", "out_of_pages"]


@dataclass
class DecodeRequest:
    """One request after its prefill; `output` starts with the first token.

    `pages` holds the prompt's pages in order, and any that were reserved for the answer; a batch
    appends what it takes from its allocator. The caller frees them when the request has left.
    """

    room_id: int
    prompt_tokens: int
    first_token: int
    pages: list[int]
    max_new_tokens: int
    stop_tokens: frozenset[int] = frozenset()
    sampler: Sampler = field(default_factory=Sampler)
    output: list[int] = field(init=False)
    finish: FinishReason | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.output = []
        self.append(self.first_token)

    @property
    def position(self) -> int:
        """Where the newest token, whose K and V are not stored yet, belongs."""
        return self.prompt_tokens + len(self.output) - 1

    def append(self, token: int) -> None:
        """Adds a token and notes whether the request is done with it."""
        self.output.append(token)
        if token in self.stop_tokens:
            self.finish = "stop"
        elif len(self.output) >= self.max_new_tokens:
            self.finish = "length"


@dataclass(frozen=True)
class StepResult:
    """What one step did for one request; `token` is None when it found no page."""

    room_id: int
    token: int | None
    finish: FinishReason | None


class DecodeBatch:
    """The requests that decode together. Not thread-safe; borrows model, cache and allocator.

    A request's tokens are the same whoever shares its batch, and whenever it joined.
    """

    def __init__(
        self,
        model: Model,
        cache: PagedKvCache,
        allocator: PageAllocator | None = None,
        max_requests: int = 64,
    ) -> None:
        """Without an allocator, requests must bring all pages they will need."""
        self._model = model
        self._cache = cache
        self._allocator = allocator
        self._max_requests = max_requests
        self._requests: dict[int, DecodeRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def has_room(self) -> bool:
        """Whether one more request may join."""
        return len(self._requests) < self._max_requests

    @property
    def requests(self) -> Sequence[DecodeRequest]:
        """Those that take part in the next step."""
        return list(self._requests.values())

    def join(self, request: DecodeRequest) -> None:
        """Adds a request. ValueError: the batch is full, or the request is done or known."""
        if not self.has_room:
            raise ValueError(f"the batch is full with {self._max_requests} requests")
        if request.finish is not None or request.room_id in self._requests:
            raise ValueError(f"room {request.room_id} is done or in the batch already")
        self._requests[request.room_id] = request

    def leave(self, room_id: int) -> DecodeRequest:
        """Takes a request out before it is done. KeyError if it is not in the batch."""
        return self._requests.pop(room_id)

    def step(self) -> list[StepResult]:
        """Decodes one token for every request; those that are done leave by themselves.

        A request without a page for its token leaves with "out_of_pages", the others go on.
        """
        ready: list[DecodeRequest] = []
        results: list[StepResult] = []
        for request in self.requests:
            if self._reach(request):
                ready.append(request)
            else:
                request.finish = "out_of_pages"
                results.append(StepResult(request.room_id, None, request.finish))
        rows = [
            DecodeRow(request.output[-1], request.position, np.asarray(request.pages))
            for request in ready
        ]
        for request, logits in zip(ready, self._model.decode(self._cache, rows), strict=True):
            token = request.sampler.choose(logits)
            request.append(token)
            results.append(StepResult(request.room_id, token, request.finish))
        for result in results:
            if result.finish is not None:
                del self._requests[result.room_id]
        return results

    def _reach(self, request: DecodeRequest) -> bool:
        """Sees to it that the request has a page for its position."""
        while request.position >= len(request.pages) * self._cache.layout.page_tokens:
            if self._allocator is None:
                return False
            try:
                request.pages += self._allocator.allocate(1)
            except OutOfPagesError:
                return False
        return True
