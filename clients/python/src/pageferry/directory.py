"""The client of the bootstrap service: engines, ranks, and where rooms are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from pageferry import _channel
from pageferry._checks import check_name, check_range, check_timeout
from pageferry._convert import duration
from pageferry.bootstrap.v1 import bootstrap_pb2, bootstrap_pb2_grpc
from pageferry.info import EngineInfo, RankInfo
from pageferry.shape import RankCoordinate
from pageferry.tls import Tls
from pageferry.watch import EngineWatch


class Bootstrap:
    """Speaks to the bootstrap service. Thread-safe. Calls are repeated as those of `Agent` are.

    `timeout` bounds each call, in seconds; where a call may wait at the service (`wait`), that
    time comes on top.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout: float = 10.0,
        tls: Tls | None = None,
    ) -> None:
        """Makes the client without connecting yet."""
        self.target = target
        self.timeout = timeout
        self._channel = _channel.make(target, tls)
        stub: Any = bootstrap_pb2_grpc.BootstrapStub
        self.stub: Any = stub(self._channel)

    @classmethod
    def connect(
        cls,
        target: str,
        *,
        timeout: float = 10.0,
        tls: Tls | None = None,
    ) -> Bootstrap:
        """Connects to a gRPC target such as "127.0.0.1:7000"; waits up to `timeout` s for it."""
        client = cls(target, timeout=timeout, tls=tls)
        try:
            request = bootstrap_pb2.ListEnginesRequest(page_size=1)
            _channel.call(client.stub.ListEngines, request, timeout=timeout, wait_for_ready=True)
        except BaseException:
            client.close()
            raise
        return client

    def get_engine(
        self, engine_id: str, *, namespace: str = "", include_ranks: bool = True
    ) -> EngineInfo:
        """One engine. NotFound (ENGINE_NOT_FOUND); Unavailable (WARMING_UP)."""
        request = bootstrap_pb2.GetEngineRequest(
            engine=_key(engine_id, namespace), include_ranks=include_ranks
        )
        response = _channel.call(self.stub.GetEngine, request, timeout=self.timeout, repeat=True)
        return EngineInfo.from_proto(response.engine)

    def list_engines(
        self, *, namespace: str = "", include_ranks: bool = False, page_size: int = 100
    ) -> Iterator[EngineInfo]:
        """All engines of a namespace by name ("*" is all namespaces), fetched page by page."""
        check_range("page_size", page_size, 1, 1000)
        token = ""
        while True:
            request = bootstrap_pb2.ListEnginesRequest(
                namespace=namespace,
                page_size=page_size,
                page_token=token,
                include_ranks=include_ranks,
            )
            response = _channel.call(
                self.stub.ListEngines, request, timeout=self.timeout, repeat=True
            )
            yield from map(EngineInfo.from_proto, response.engines)
            token = response.next_page_token
            if not token:
                return

    def resolve_ranks(
        self,
        engine_id: str,
        coordinates: Iterable[RankCoordinate],
        *,
        namespace: str = "",
        wait: float | None = None,
    ) -> list[RankInfo]:
        """Who holds each of the coordinates, in their order; all or nothing.

        Unavailable (ENGINE_NOT_READY, with "missing") while any rank of the shape is missing;
        `wait` lets the service wait that many seconds (up to 60) for it.
        """
        check_timeout("wait", wait, 0, 60)
        request = bootstrap_pb2.ResolveRanksRequest(
            engine=_key(engine_id, namespace),
            coordinates=[coordinate.to_proto() for coordinate in coordinates],
            wait=duration(wait),
        )
        timeout = self.timeout + (wait or 0)
        response = _channel.call(self.stub.ResolveRanks, request, timeout=timeout, repeat=True)
        return [RankInfo.from_proto(rank) for rank in response.ranks]

    def watch(
        self,
        *,
        engine_ids: Iterable[str] = (),
        namespace: str = "",
        include_ranks: bool = True,
        resume_version: int = 0,
        idle_timeout: float = 30.0,
    ) -> EngineWatch:
        """Follows engines: a snapshot, then every change. Close it, or use it with `with`.

        The service says something at least every 10 s; after `idle_timeout` s of silence the
        watch raises DeadlineExceeded. To go on after an error, watch again with the last version
        as `resume_version` (OutOfRange COMPACTED: start without one).
        """
        request = bootstrap_pb2.WatchEnginesRequest(
            namespace=namespace,
            engine_ids=list(engine_ids),
            resume_version=resume_version,
            include_ranks=include_ranks,
        )
        return EngineWatch(lambda: self.stub.WatchEngines(request), idle_timeout)

    def place_rooms(
        self,
        engine_id: str,
        placements: Mapping[int, int],
        *,
        namespace: str = "",
        ttl: float | None = None,
    ) -> int:
        """Records the DP rank of each room; returns how many moved from another rank."""
        check_timeout("ttl", ttl, 1, 3600)
        request = bootstrap_pb2.PlaceRoomsRequest(
            engine=_key(engine_id, namespace),
            placements=[
                bootstrap_pb2.RoomPlacement(room_id=room, dp_rank=rank)
                for room, rank in placements.items()
            ],
            ttl=duration(ttl),
        )
        response = _channel.call(self.stub.PlaceRooms, request, timeout=self.timeout, repeat=True)
        return int(response.moved_count)

    def lookup_rooms(
        self,
        engine_id: str,
        room_ids: Iterable[int],
        *,
        namespace: str = "",
        wait: float | None = None,
    ) -> dict[int, int]:
        """The DP rank of each room that is placed; `wait` lets the service wait for all."""
        check_timeout("wait", wait, 0, 60)
        request = bootstrap_pb2.LookupRoomsRequest(
            engine=_key(engine_id, namespace), room_ids=list(room_ids), wait=duration(wait)
        )
        timeout = self.timeout + (wait or 0)
        response = _channel.call(self.stub.LookupRooms, request, timeout=timeout, repeat=True)
        return {placed.room_id: placed.dp_rank for placed in response.placements}

    def close(self) -> None:
        """Ends the connection and with it all watches. May be called twice."""
        self._channel.close()

    def __enter__(self) -> Bootstrap:
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


def _key(engine_id: str, namespace: str) -> bootstrap_pb2.EngineKey:
    check_name("engine_id", engine_id, 128)
    return bootstrap_pb2.EngineKey(namespace=namespace, engine_id=engine_id)
