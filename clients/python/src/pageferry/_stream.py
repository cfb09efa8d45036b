"""The stream under a session: its reader thread, its outbox, its end."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from pageferry import _recovery
from pageferry._outbox import Outbox
from pageferry._table import RoomTable, agent_state
from pageferry.agent.v1 import agent_pb2
from pageferry.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    PageferryError,
    ResourceExhausted,
    SessionLost,
    from_rpc_error,
)
from pageferry.events import AgentStateChanged, Event, PrefixKnown, RoomUpdate, SessionClosed
from pageferry.kinds import AgentState
from pageferry.liveness import AgentProcess
from pageferry.rooms import Room

_log = logging.getLogger("pageferry")
_CLIENT = "pageferry-python 0.1.0"
_STREAM_END_SECONDS = 2.0
_Command = agent_pb2.EngineCommand


class SessionStream:
    """One session's stream. Thread-safe.

    Owns the reader thread; the gRPC library's own thread for the stream takes from the outbox.
    All rooms share `lock`; no callback runs and nothing is sent with the lock held.
    """

    def __init__(
        self,
        host: _recovery.Host,
        engine_id: str,
        *,
        timeout: float,
        on_event: Callable[[Event], None] | None,
        events_at_most: int,
        send_timeout: float,
    ) -> None:
        """Opens the session; `events_at_most` above 0 keeps events for `poll`."""
        self.lock = threading.RLock()
        self.engine_id = engine_id
        self.agent_id, self.epoch = "", 0
        self.agent_state = AgentState.UNSPECIFIED
        self._host = host
        self._on_event = on_event
        self._send_timeout = send_timeout
        self._events_at_most = events_at_most
        self._events: deque[Event] = deque()
        self._table = RoomTable()
        self._changed = threading.Condition(self.lock)
        self._opened = False
        self._closing = False
        self._over = False
        self._lost: SessionLost | None = None
        self._stop = threading.Event()
        self._outbox = Outbox(commands_at_most=8192, bytes_at_most=32 << 20)
        opening = _Command(open=agent_pb2.OpenSession(engine_id=engine_id, client=_CLIENT))
        self._outbox.put([opening], timeout=0, urgent=True)
        self._call: Any = host.stub.Session(iter(self._outbox))
        self._reader = threading.Thread(target=self._read, name="pageferry-session", daemon=True)
        self._reader.start()
        try:
            self._wait_opened(timeout)
        except BaseException:
            self._finish()
            raise

    def _wait_opened(self, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._opened or self._lost, timeout)
            if self._opened:
                return
            lost = self._lost
        if lost is None:
            raise DeadlineExceeded(f"the agent did not open the session within {timeout} s")
        raise lost.__cause__ or lost

    @property
    def finished(self) -> bool:
        """True once the session has ended and waits for no evidence about its rooms any more."""
        return self._over

    # --- what rooms need ---

    def send(self, commands: Iterable[_Command], *, urgent: bool = False) -> None:
        """Queues commands in order. SessionLost; ResourceExhausted if the agent takes none."""
        with self.lock:
            lost = self._lost
        if lost is not None:
            raise SessionLost(lost.message, code=lost.code, reason=lost.reason) from lost
        self._outbox.put(commands, timeout=self._send_timeout, urgent=urgent)

    def check_may_block(self) -> None:
        """Raises RuntimeError on the thread that brings the events."""
        if threading.current_thread() is self._reader:
            raise RuntimeError("a callback must not wait: it runs on the thread that brings events")

    def _open(self, room: Room, command: _Command) -> None:
        with self.lock:
            self._table.add(room)
        try:
            self.send([command])
        except BaseException:
            with self.lock:
                self._table.remove(room)
            raise

    # --- reader thread ---

    def _read(self) -> None:
        process: AgentProcess | None = None
        error: PageferryError | None = None
        try:
            for response in self._call:
                if process is None:
                    process = AgentProcess(self._host.target)
                self._take(response)
        except grpc.RpcError as failure:
            error = from_rpc_error(failure)
        except PageferryError as failure:
            error = failure
        except Exception as failure:
            _log.exception("session with %s", self._host.target)
            error = Internal(f"the session's reader failed: {failure!r}")
        self._call.cancel()
        self._outbox.discard()
        process = process or AgentProcess("")
        try:
            cause = self._lose(error)
            _recovery.recover(self._host, process, self._undrained, self._mark_drained, self._stop)
            self._deliver(lambda: [SessionClosed(cause)])
        finally:
            process.close()
            self._host.forget(self)
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _take(self, response: agent_pb2.SessionResponse) -> None:
        def apply() -> list[Event]:
            result: list[Event] = []
            for message in response.events:
                if message.HasField("opened"):
                    self._opened = True
                    self.agent_id = message.opened.agent.agent_id
                    self.epoch = message.opened.agent.epoch
                    self.agent_state = agent_state(message.opened.state)
                else:
                    result += self._table.apply(message)
            return result

        self._deliver(apply)

    def _deliver(self, make: Callable[[], list[Event]]) -> None:
        """Makes events with the lock held, then calls back without it."""
        with self._changed:
            made = make()
            for event in made:
                if isinstance(event, AgentStateChanged):
                    self.agent_state, self.epoch = event.state, event.epoch
            if self._events_at_most:
                self._events.extend(made)
            overflow = len(self._events) > self._events_at_most
            self._changed.notify_all()
        for event in made:
            if isinstance(event, RoomUpdate | PrefixKnown):
                _call_back(event.room.on_event, event)
            _call_back(self._on_event, event)
        if overflow and self._lost is None:
            raise ResourceExhausted(
                f"more than {self._events_at_most} events wait for poll()",
                reason="SLOW_CONSUMER",
            )

    def _lose(self, error: PageferryError | None) -> PageferryError | None:
        """Fails the live rooms; returns what SessionClosed is to say."""
        ended = error is None or isinstance(error, Cancelled)
        with self.lock:
            wanted = self._closing and ended
        told = error.message if error else "the agent ended it"
        code = grpc.StatusCode.UNAVAILABLE if error is None or ended else error.code
        lost = SessionLost(f"the session has ended: {told}", code=code)
        if error is not None:
            lost.reason, lost.metadata = error.reason, error.metadata
        lost.__cause__ = error
        if not wanted and self._opened:
            _log.warning("session with %s lost: %s", self._host.target, told)

        def lose() -> list[Event]:
            self._lost = lost
            return self._table.lose(lost)

        self._deliver(lose)
        return None if wanted else lost

    def _undrained(self) -> list[Room]:
        with self.lock:
            return self._table.rooms()

    def _mark_drained(self, rooms: list[Room]) -> None:
        self._deliver(lambda: self._table.drained(rooms))

    # --- end ---

    def close(self, timeout: float = 5.0) -> None:
        """Aborts what still runs, waits up to `timeout` s for it to be drained, and ends.

        May be called twice, and from any thread but a callback's. Rooms that are not drained by
        then stay so: their pages must not be reused.
        """
        self.check_may_block()
        deadline = time.monotonic() + timeout
        try:
            with self.lock:
                self._closing = True
                rooms = self._table.rooms()
            for room in rooms:
                room.abort("session closed")
            with self._changed:
                self._changed.wait_for(
                    lambda: self._over or not len(self._table), max(0.0, timeout)
                )
            self._outbox.close()
            left = deadline - time.monotonic()
            self._reader.join(min(_STREAM_END_SECONDS, max(0.1, left)))
        finally:
            self._finish()
        if left_over := len(self._table):
            _log.warning("session closed with %d rooms that are not drained", left_over)

    def _finish(self) -> None:
        """Ends both threads, whatever state they are in."""
        with self.lock:
            self._closing = True
        self._stop.set()
        self._outbox.discard()
        self._call.cancel()
        self._reader.join()


def _call_back(callback: Callable[[Any], None] | None, event: Event) -> None:
    if callback is None:
        return
    try:
        callback(event)
    except Exception:
        _log.exception("callback for %s", type(event).__name__)
