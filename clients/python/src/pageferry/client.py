"""The client of an agent."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import Any

from pageferry import _channel
from pageferry._checks import check_name, check_range, check_timeout
from pageferry._convert import duration
from pageferry.agent.v1 import agent_pb2, agent_pb2_grpc
from pageferry.errors import DeadlineExceeded, FailedPrecondition
from pageferry.events import Event
from pageferry.info import AgentInfo
from pageferry.kinds import AgentState, MemoryKind, Role
from pageferry.pools import Pool, import_request
from pageferry.profile import KvProfile
from pageferry.session import Session
from pageferry.shape import ParallelShape, RankCoordinate
from pageferry.tls import Tls

_log = logging.getLogger("pageferry")
EVENTS_AT_MOST = 262_144


class Agent:
    """Speaks to the agent of one rank. Thread-safe.

    Owns a gRPC channel, the pools that it mapped and the sessions that it opened; `close` ends
    all of them. Calls that change nothing the second time are repeated twice, within their timeout,
    where the agent could not be reached; the rest, and all that an agent refused, is the caller's.
    """

    def __init__(self, target: str, *, timeout: float = 10.0, tls: Tls | None = None) -> None:
        """Makes the client without connecting yet; `timeout` is for each call, in seconds."""
        self.target = target
        self.timeout = timeout
        self._channel = _channel.make(target, tls)
        stub: Any = agent_pb2_grpc.TransferAgentStub
        self.stub: Any = stub(self._channel)
        self._lock = threading.Lock()
        self._pools: list[Pool] = []
        self._sessions: list[Session] = []
        self._closed = False

    @classmethod
    def connect(cls, target: str, *, timeout: float = 10.0, tls: Tls | None = None) -> Agent:
        """Connects to an agent at a gRPC target such as "unix:/run/pageferry/agent.sock".

        Waits up to `timeout` s for it to be up; `tls` is for agents that serve engines over TCP.
        Raises DeadlineExceeded or Unavailable.
        """
        agent = cls(target, timeout=timeout, tls=tls)
        try:
            agent.info(timeout=timeout, wait=True)
        except BaseException:
            agent.close()
            raise
        return agent

    def _call(
        self,
        method: str,
        request: Any,
        *,
        timeout: float | None = None,
        wait_for_ready: bool = False,
        repeat: bool = False,
    ) -> Any:
        if self._closed:
            raise FailedPrecondition("the client is closed")
        rpc = getattr(self.stub, method)
        left = self.timeout if timeout is None else timeout
        return _channel.call(
            rpc, request, timeout=left, wait_for_ready=wait_for_ready, repeat=repeat
        )

    def info(self, *, timeout: float | None = None, wait: bool = False) -> AgentInfo:
        """Who the agent is, its state, its pools and with whom it speaks.

        With `wait`, an agent that is not up (such as one that starts again) is waited for.
        """
        request = agent_pb2.GetAgentRequest()
        response = self._call(
            "GetAgent", request, timeout=timeout, wait_for_ready=wait, repeat=True
        )
        return AgentInfo.from_proto(response)

    # --- pools ---

    def create_pool(
        self,
        name: str,
        size_bytes: int,
        *,
        kind: MemoryKind = MemoryKind.HOST_SHM,
        device: int = 0,
        prefer_huge_pages: bool = False,
    ) -> Pool:
        """Makes a pool and maps it; or maps the live one of that name, kind and size.

        `Pool.adopted` tells which: the bytes of an adopted pool are what they were. Huge pages are
        a wish with `prefer_huge_pages` (see `Pool.huge_bytes`, `Pool.huge_pages_note`) and a must
        with the kind HOST_SHM_HUGE (ResourceExhausted where the host has too few).
        """
        check_name("name", name, 64)
        check_range("size_bytes", size_bytes, 4096, 1 << 44)
        request = agent_pb2.CreatePoolRequest(
            name=name,
            size_bytes=size_bytes,
            memory_kind=int(kind),  # type: ignore[arg-type]
            device=device,
            prefer_huge_pages=prefer_huge_pages,
        )
        response = self._call("CreatePool", request)
        return self._keep(Pool(response.pool, adopted=response.adopted))

    def _keep(self, pool: Pool) -> Pool:
        with self._lock:
            self._pools = [known for known in self._pools if known.mapped]
            self._pools.append(pool)
        return pool

    def import_pool(
        self,
        name: str,
        size_bytes: int | None = None,
        *,
        memory: SharedMemory | int | None = None,
        shm_name: str = "",
        memory_file: str = "",
        device_handle: bytes = b"",
        kind: MemoryKind = MemoryKind.HOST_SHM,
        device: int = 0,
        data_offset_bytes: int = 0,
        read_only: bool = False,
    ) -> Pool:
        """Hands shared memory of the engine's own to the agent, and maps it here too.

        Named by exactly one of: `memory`, a `SharedMemory` or the descriptor of a memfd, all of it
        behind `data_offset_bytes` where no size is given; `shm_name`, "/name" as in shm_open; and
        `memory_file`, a path that the agent may open. With `read_only` the agent cannot write to
        it, which is enough for a prefill engine. The memory stays the engine's: keep it until the
        session has ended and its rooms are drained, and remove it yourself.
        """
        request = import_request(
            name,
            size_bytes,
            memory=memory,
            shm_name=shm_name,
            memory_file=memory_file,
            device_handle=device_handle,
            kind=kind,
            device=device,
            data_offset_bytes=data_offset_bytes,
            read_only=read_only,
        )
        return self._keep(Pool(self._call("ImportPool", request).pool, handle=request))

    def release_pool(self, pool: Pool | str) -> None:
        """Gives a pool up at the agent, and unmaps it here where it was given as a `Pool`.

        FailedPrecondition (IN_USE) while the registered engine or a room that is not drained
        uses it; it stays mapped then.
        """
        name = pool if isinstance(pool, str) else pool.name
        self._call("ReleasePool", agent_pb2.ReleasePoolRequest(name=name))
        if isinstance(pool, Pool):
            pool.close()

    def mapped_pools(self) -> list[Pool]:
        """Pools of this client that are mapped here."""
        with self._lock:
            return [pool for pool in self._pools if pool.mapped]

    # --- engine and session ---

    def register_engine(
        self,
        engine_id: str,
        role: Role,
        profile: KvProfile,
        *,
        shape: ParallelShape | None = None,
        coordinate: RankCoordinate | None = None,
        namespace: str = "",
        dp_by_directory: bool = False,
        labels: Mapping[str, str] | None = None,
        layer_count: int = 0,
        wait_ready: float | None = None,
    ) -> AgentInfo:
        """Registers the engine rank that this agent serves; a repeat with equal content is fine.

        Everything is checked here first, also that buffers lie within the pools made by this
        client. With `wait_ready`, waits that many seconds until the agent holds its cell and
        takes rooms (DeadlineExceeded if not).
        """
        check_name("engine_id", engine_id, 128)
        shape, coordinate = shape or ParallelShape(), coordinate or RankCoordinate()
        shape.check(coordinate)
        check_range("layer_count", layer_count, 0, 65_536)
        profile.check({pool.name: pool.size_bytes for pool in self.mapped_pools()})
        request = agent_pb2.RegisterEngineRequest(
            namespace=namespace,
            engine_id=engine_id,
            role=int(role),  # type: ignore[arg-type]
            shape=shape.to_proto(),
            coordinate=coordinate.to_proto(),
            profile=profile.to_proto(),
            dp_by_directory=dp_by_directory,
            labels=dict(labels or {}),
            layer_count=layer_count,
        )
        self._call("RegisterEngine", request, repeat=True)
        return self.info() if wait_ready is None else self.wait_ready(wait_ready)

    def wait_ready(self, timeout: float) -> AgentInfo:
        """Waits until the agent holds its cell (epoch known) and takes rooms.

        DeadlineExceeded after `timeout` s; FailedPrecondition where it will not come (SUPERSEDED).
        """
        deadline = time.monotonic() + timeout
        delay = 0.01
        pause = threading.Event()
        while True:
            info = self.info()
            if info.state == AgentState.READY and info.epoch > 0:
                return info
            if info.state == AgentState.SUPERSEDED:
                message = "a younger agent holds the cell"
                raise FailedPrecondition(message, reason="SUPERSEDED")
            left = deadline - time.monotonic()
            if left <= 0:
                why = f": {info.lease_error}" if info.lease_error else ""
                raise DeadlineExceeded(f"the agent is {info.state.name} after {timeout} s{why}")
            pause.wait(min(delay, left))
            delay = min(delay * 2, 0.25)

    def open_session(
        self,
        engine_id: str,
        *,
        timeout: float | None = None,
        on_event: Callable[[Event], None] | None = None,
        events: bool = False,
        send_timeout: float = 5.0,
    ) -> Session:
        """Opens the session of the registered engine; one at a time.

        `events=True` keeps events for `Session.poll`: then it must be called, for a session whose
        unread events exceed 262,144 is ended. Commands wait at most `send_timeout` s for an agent
        that takes none. Raises what the agent says (FailedPrecondition ENGINE_NOT_REGISTERED,
        AlreadyExists ENGINE_ALREADY_REGISTERED), or DeadlineExceeded.
        """
        check_name("engine_id", engine_id, 128)
        if self._closed:
            raise FailedPrecondition("the client is closed")
        session = Session(
            self,
            engine_id,
            timeout=self.timeout if timeout is None else timeout,
            on_event=on_event,
            events_at_most=EVENTS_AT_MOST if events else 0,
            send_timeout=send_timeout,
        )
        with self._lock:
            self._sessions = [known for known in (*self._sessions, session) if not known.finished]
        return session

    def forget(self, session: Session) -> None:
        """Called by a session that has ended."""
        with self._lock, contextlib.suppress(ValueError):
            self._sessions.remove(session)

    def drain(self, *, timeout: float = 30.0, deregister: bool = False) -> tuple[int, int]:
        """Refuses new rooms and lets live ones end; returns how many finished and were aborted."""
        check_timeout("timeout", timeout, 0, 3600)
        request = agent_pb2.DrainRequest(timeout=duration(timeout), deregister=deregister)
        response = self._call("Drain", request, timeout=timeout + self.timeout)
        return response.finished_count, response.aborted_count

    # --- end ---

    def close(self) -> None:
        """Closes sessions, unmaps pools and ends the connection. May be called twice."""
        self._closed = True
        with self._lock:
            sessions: Sequence[Session] = tuple(self._sessions)
        try:
            for session in sessions:
                session.close()
        finally:
            with self._lock:
                pools, self._pools = self._pools, []
            for pool in pools:
                pool.close()
            self._channel.close()

    def __enter__(self) -> Agent:
        """Gives the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the client."""
        self.close()
