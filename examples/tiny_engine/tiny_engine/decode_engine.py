"""The decode engine: lets prompts' pages come from prefill, and decodes them in one batch.

`python -m tiny_engine.decode_engine --agent unix:A.sock --engine-id decode-0 --listen R.sock`
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pageferry as pf
from pageferry.errors import AlreadyExists

from tiny_engine.aux import AuxError, AuxRow, aux_slot, prompt_digest
from tiny_engine.decode import DecodeBatch, DecodeRequest
from tiny_engine.engine import Engine
from tiny_engine.engine_command import run_engine
from tiny_engine.engine_parts import Asked, EngineOptions
from tiny_engine.kv_cache import page_digests
from tiny_engine.model import Model
from tiny_engine.page_store import Lease
from tiny_engine.tokenizer import load_tokenizer
from tiny_engine.work import Work


@dataclass
class _Job:
    """A request from its room's opening until its answer is whole and the room is drained."""

    asked: Asked
    lease: Lease
    slot: int
    room: pf.ReceiveRoom
    drained: bool = False
    ended: bool = False  # no more tokens will come
    request: DecodeRequest | None = None


class DecodeEngine(Engine):
    """Requests join the batch when their pages are in place, and leave it when they are done."""

    role = pf.Role.DECODE

    def __init__(
        self, model: Model, options: EngineOptions, stop_tokens: frozenset[int] | None = None
    ) -> None:
        self._jobs: dict[int, _Job] = {}
        self._joining: deque[_Job] = deque()
        self._stop_tokens = load_tokenizer().stop_tokens if stop_tokens is None else stop_tokens
        super().__init__(model, options)
        self._batch = DecodeBatch(model, self.cache)

    @property
    def busy(self) -> bool:
        """Whether there is a step to do."""
        return bool(self._joining) or len(self._batch) > 0

    def pages_needed(self, work: Work) -> int:
        """Pages for prompt and answer, so that an answer that began never lacks one."""
        return -(-(len(work.tokens) + work.max_tokens) // self.layout.page_tokens)

    def begin(self, asked: Asked) -> None:
        """Grants pages for the part of the prompt that is not here yet."""
        work = asked.work
        if work.room in self._jobs:
            raise AlreadyExists(f"room {work.room} is not over here", reason="DUPLICATE_ROOM")
        lease = self.pages.lease(work.tokens, self.pages_needed(work))
        slot = self.slots.allocate(1)[0]
        granted = lease.pages[lease.cached : self._prompt_pages(work)]
        try:
            room = self.session.open_receive(
                work.room,
                work.prefill_engine,
                granted,
                attempt=1,
                aux_slot=slot,
                cached_prefix_pages=lease.cached,
                prefill_dp_rank=work.prefill_dp_rank,
                timeout=self.options.room_seconds,
            )
        except BaseException:
            self.pages.give_back(lease)
            self.slots.free([slot])
            raise
        self._jobs[work.room] = _Job(asked, lease, slot, room)
        asked.tell("granted", pages=len(granted), cached_pages=lease.cached)

    def _prompt_pages(self, work: Work) -> int:
        return -(-len(work.tokens) // self.layout.page_tokens)

    def on_room(self, event: pf.RoomUpdate) -> None:
        """Follows a room: progress, its pages in place, or its failure."""
        job = self._jobs.get(event.room.room_id)
        if job is None or job.room is not event.room:
            return
        job.drained = event.drained
        if event.state == pf.RoomState.TRANSFERRING:
            job.asked.tell("transfer", pages=event.pages)
        elif event.error is not None and not job.ended:
            job.ended = True
            job.asked.tell_error(event.error)
        elif event.state == pf.RoomState.SUCCESS and job.request is None and not job.ended:
            self._receive(job)
        self._release_if_done(job)

    def _receive(self, job: _Job) -> None:
        """The pages are in place: checks the aux row, tells of the room, queues the request."""
        work, result = job.asked.work, job.room.result()
        try:
            row = AuxRow.unpack(aux_slot(self.aux, job.slot))
            self._check(row, work)
        except AuxError as error:
            job.ended = True
            job.asked.tell_failed("DATA_LOSS", "BAD_AUX", str(error))
            return
        pages = job.lease.pages[: self._prompt_pages(work)]
        digests = page_digests(self.cache.copy_pages(pages)) if work.digest else []
        self.pages.keep(job.lease, work.tokens)
        job.request = DecodeRequest(
            room_id=work.room,
            prompt_tokens=len(work.tokens),
            first_token=row.first_token,
            pages=list(job.lease.pages),
            max_new_tokens=row.max_new_tokens,
            stop_tokens=self._stop_tokens,
            sampler=row.sampler,
        )
        job.asked.tell(
            "received",
            pages=result.pages,
            bytes=result.bytes,
            seconds=result.since_grant,
            transport=result.transport,
            digests=digests,
        )
        job.asked.tell("token", token=row.first_token)
        if job.request.finish is None:
            self._joining.append(job)
        else:
            self._finish(job)

    def _check(self, row: AuxRow, work: Work) -> None:
        """Raises AuxError where the row belongs to another request."""
        theirs = (row.room_id, row.prompt_tokens, row.prompt_digest, row.max_new_tokens)
        ours = (work.room, len(work.tokens), prompt_digest(work.tokens), work.max_tokens)
        if theirs != ours or row.attempt not in (0, 1):
            raise AuxError(f"the aux row of room {row.room_id} came to room {work.room}")

    def work(self) -> None:
        """Lets requests join, then decodes one token for each."""
        while self._joining and self._batch.has_room:
            job = self._joining.popleft()
            assert job.request is not None
            self._batch.join(job.request)
        for result in self._batch.step():
            job = self._jobs[result.room_id]
            if result.token is not None:
                job.asked.tell("token", token=result.token)
            if result.finish is not None:
                self._finish(job)

    def _finish(self, job: _Job) -> None:
        assert job.request is not None
        job.ended = True
        job.asked.tell("done", finish=job.request.finish, tokens=len(job.request.output))
        self._release_if_done(job)

    def _release_if_done(self, job: _Job) -> None:
        """Takes pages and slot back when no token is to come and nothing can be written."""
        if job.ended and job.drained and self._jobs.pop(job.asked.work.room, None) is not None:
            self.pages.give_back(job.lease)
            self.slots.free([job.slot])
            job.room.close()
            job.asked.tell("released")

    def drop(self, chosen: Callable[[Asked], bool], detail: str) -> None:
        """Aborts the chosen rooms, and ends the answers of those that were received."""
        for job in [job for job in self._jobs.values() if chosen(job.asked)]:
            job.room.abort(detail[:256])
            if job.request is None or job.ended:
                continue
            if job in self._joining:
                self._joining.remove(job)
            else:
                self._batch.leave(job.asked.work.room)
            job.ended = True
            job.asked.tell_failed("ABORTED", "ABORTED", detail)
            self._release_if_done(job)


if __name__ == "__main__":
    sys.exit(run_engine(DecodeEngine))
