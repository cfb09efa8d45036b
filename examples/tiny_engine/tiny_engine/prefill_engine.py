"""The prefill engine: computes prompts chunk by chunk and sends pages while it goes on.

`python -m tiny_engine.prefill_engine --agent unix:A.sock --engine-id prefill-0 --listen R.sock`
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pageferry as pf
from pageferry.errors import AlreadyExists

from tiny_engine.aux import AuxRow, aux_slot, prompt_digest
from tiny_engine.engine import Engine
from tiny_engine.engine_command import run_engine
from tiny_engine.engine_parts import Asked, EngineOptions
from tiny_engine.model import Model
from tiny_engine.page_store import Lease
from tiny_engine.prefill import Prefill, PrefillChunk
from tiny_engine.work import Work


@dataclass
class _Job:
    """A prompt from its room's opening until the room is drained."""

    asked: Asked
    lease: Lease
    slot: int
    room: pf.SendRoom
    prefill: Prefill
    chunks: Iterator[PrefillChunk] = field(init=False)
    position: int = 0  # pages of the prompt that were handed over, or that decode has
    began: bool = False
    granted_first: bool = False
    over: bool = False

    def __post_init__(self) -> None:
        self.chunks = self.prefill.chunks()


class PrefillEngine(Engine):
    """Prompts take turns, one chunk each, so that a long one holds no short one up."""

    role = pf.Role.PREFILL

    def __init__(self, model: Model, options: EngineOptions) -> None:
        self._jobs: dict[int, _Job] = {}
        self._turns: deque[_Job] = deque()
        super().__init__(model, options)

    @property
    def busy(self) -> bool:
        """Whether some prompt waits to be computed."""
        return bool(self._turns)

    def pages_needed(self, work: Work) -> int:
        """Pages for the prompt."""
        return -(-len(work.tokens) // self.layout.page_tokens)

    def begin(self, asked: Asked) -> None:
        """Opens the room, and queues its prompt unless it is to wait for the grant."""
        work = asked.work
        tokens = work.tokens
        if work.room in self._jobs:
            raise AlreadyExists(f"room {work.room} is not over here", reason="DUPLICATE_ROOM")
        lease = self.pages.lease(tokens, self.pages_needed(work), len(tokens) - 1)
        try:
            room = self.session.open_send(work.room, timeout=self.options.room_seconds)
        except BaseException:
            self.pages.give_back(lease)
            raise
        cached_tokens = lease.cached * self.layout.page_tokens
        prefill = Prefill(self.model, self.cache, tokens, lease.pages, cached_tokens)
        job = _Job(asked, lease, self.slots.allocate(1)[0], room, prefill)
        self._jobs[work.room] = job
        asked.tell("opened", cached_tokens=cached_tokens)
        if not work.wait_for_grant:
            self._turns.append(job)

    def on_grant(self, event: pf.PrefixKnown) -> None:
        """Lets a prompt that waited for it be computed."""
        job = self._jobs.get(event.room.room_id)
        if job is None or job.room is not event.room or job.over:
            return
        if job.asked.work.wait_for_grant and not job.began and job not in self._turns:
            self._turns.append(job)

    def work(self) -> None:
        """Computes a chunk of the prompt whose turn it is, and hands its pages over."""
        job = self._turns.popleft()
        try:
            chunk = next(job.chunks)
            self._hand_over(job, chunk)
        except pf.PageferryError as error:
            # The session has ended, or its agent takes nothing: the room's own end follows.
            job.room.fail(str(error)[:1024])
            return
        if not chunk.last:
            self._turns.append(job)

    def _hand_over(self, job: _Job, chunk: PrefillChunk) -> None:
        """Sends what is final and was not sent. What decode has already is left out, where that is
        known before the first chunk; later on, chunks must follow one another without a gap.
        """
        known = job.room.grant
        if not job.began:
            job.began, job.granted_first = True, known is not None
            job.position = known.cached_prefix_pages if known is not None else 0
        end = max(job.position, chunk.first_page + len(chunk.pages))
        pages = job.lease.pages[job.position : end]
        first, job.position = job.position, end
        slot = self._write_aux(job) if chunk.last else None
        if pages or chunk.last:
            job.room.send_chunk(pages, first_position=first, last=chunk.last, aux_slot=slot)
        job.asked.tell("chunk", pages=end, of=len(job.lease.pages))
        if chunk.last:
            self.pages.keep(job.lease, job.asked.work.tokens)
            order = "grant_first" if job.granted_first else "send_first"
            if not job.granted_first and known is not None:
                order = "grant_between"
            job.asked.tell("sent", order=order)

    def _write_aux(self, job: _Job) -> int:
        """Writes the first token and the state of sampling into the room's aux slot."""
        work, sampler = job.asked.work, job.asked.work.sampler()
        first_token = job.prefill.first_token(sampler)
        row = AuxRow(
            room_id=work.room,
            attempt=job.room.attempt,
            prompt_tokens=len(work.tokens),
            first_token=first_token,
            max_new_tokens=work.max_tokens,
            sampler=sampler,
            prompt_digest=prompt_digest(work.tokens),
        )
        row.pack_into(aux_slot(self.aux, job.slot))
        return job.slot

    def on_room(self, event: pf.RoomUpdate) -> None:
        """Reports a room's end once, and takes pages and slot back when it is drained."""
        job = self._jobs.get(event.room.room_id)
        if job is None or job.room is not event.room:
            return
        if event.state.terminal and not job.over:
            job.over = True
            if job in self._turns:
                self._turns.remove(job)
            if event.error is not None:
                job.asked.tell_error(event.error)
            else:
                job.asked.tell("finished", pages=event.pages, bytes=event.bytes)
        if event.drained:
            del self._jobs[event.room.room_id]
            self.pages.give_back(job.lease)
            self.slots.free([job.slot])
            job.room.close()
            job.asked.tell("released")

    def drop(self, chosen: Callable[[Asked], bool], detail: str) -> None:
        """Aborts the chosen rooms."""
        for job in self._jobs.values():
            if chosen(job.asked):
                job.room.abort(detail[:256])


if __name__ == "__main__":
    sys.exit(run_engine(PrefillEngine))
