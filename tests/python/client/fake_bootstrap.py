"""A fake bootstrap service: a table that tests fill by hand."""

from __future__ import annotations

import queue
from concurrent import futures
from typing import Any

import grpc
from pageferry.bootstrap.v1 import bootstrap_pb2, bootstrap_pb2_grpc

from fake_fabric import detail

_Watch = bootstrap_pb2.WatchEnginesResponse


class FakeBootstrap(bootstrap_pb2_grpc.BootstrapServicer):
    """Engines by name; every change goes to every watch."""

    def __init__(self) -> None:
        """Starts serving on a port of the system's choice."""
        self.engines: dict[str, bootstrap_pb2.Engine] = {}
        self.version = 1
        self.placed: dict[int, int] = {}
        self.waits: list[float] = []
        self.watches: list[queue.Queue[_Watch | None]] = []
        self.server = grpc.server(futures.ThreadPoolExecutor(64))
        bootstrap_pb2_grpc.add_BootstrapServicer_to_server(self, self.server)
        self.target = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def stop(self) -> None:
        """Ends all watches and the service."""
        for watch in self.watches:
            watch.put(None)
        self.server.stop(0).wait()

    def put(self, engine: bootstrap_pb2.Engine) -> None:
        """Changes an engine."""
        self.version += 1
        self.engines[engine.key.engine_id] = engine
        change = _Watch.Change(engines=[engine])
        for watch in self.watches:
            watch.put(_Watch(version=self.version, progress=_Watch.Progress()))
            watch.put(_Watch(version=self.version, change=change))

    def remove(self, engine_id: str) -> None:
        """Forgets an engine."""
        self.version += 1
        change = _Watch.Change(removed=[self.engines.pop(engine_id).key])
        for watch in self.watches:
            watch.put(_Watch(version=self.version, change=change))

    def _find(self, key: bootstrap_pb2.EngineKey, context: Any) -> bootstrap_pb2.Engine:
        if key.engine_id not in self.engines:
            self._abort(context, grpc.StatusCode.NOT_FOUND, "ENGINE_NOT_FOUND")
        return self.engines[key.engine_id]

    def _abort(self, context: Any, code: grpc.StatusCode, reason: str, **metadata: str) -> None:
        error = detail(code.value[0], reason, f"fake {reason}", **metadata)
        details = (("grpc-status-details-bin", error.SerializeToString()),)
        context.set_trailing_metadata(details)
        context.abort(code, error.message)

    def GetEngine(self, request: Any, context: Any) -> Any:
        """One engine."""
        engine = self._find(request.engine, context)
        return bootstrap_pb2.GetEngineResponse(engine=engine, version=self.version)

    def ListEngines(self, request: Any, context: Any) -> Any:
        """A page, whose token is a position."""
        names = sorted(self.engines)
        start = int(request.page_token or 0)
        end = start + request.page_size
        return bootstrap_pb2.ListEnginesResponse(
            engines=[self.engines[name] for name in names[start:end]],
            next_page_token=str(end) if end < len(names) else "",
            version=self.version,
        )

    def ResolveRanks(self, request: Any, context: Any) -> Any:
        """All or nothing."""
        self.waits.append(request.wait.ToSeconds())
        engine = self._find(request.engine, context)
        if not engine.ready:
            missing = " ".join(f"dp{c.dp}.tp{c.tp}" for c in engine.missing)
            self._abort(context, grpc.StatusCode.UNAVAILABLE, "ENGINE_NOT_READY", missing=missing)
        ranks = [
            next(rank for rank in engine.ranks if rank.coordinate == cell)
            for cell in request.coordinates
        ]
        return bootstrap_pb2.ResolveRanksResponse(ranks=ranks, version=self.version)

    def WatchEngines(self, request: Any, context: Any) -> Any:
        """A snapshot, then what `put` and `remove` say."""
        events: queue.Queue[_Watch | None] = queue.Queue()
        context.add_callback(lambda: events.put(None))
        if request.resume_version > self.version:
            self._abort(context, grpc.StatusCode.OUT_OF_RANGE, "COMPACTED")
        if not request.resume_version:
            snapshot = _Watch.Snapshot(engines=self.engines.values(), warming_up=True)
            yield _Watch(version=self.version, snapshot=snapshot)
        self.watches.append(events)
        while (event := events.get()) is not None:
            yield event

    def PlaceRooms(self, request: Any, context: Any) -> Any:
        """Records them."""
        moved = 0
        for placed in request.placements:
            moved += self.placed.get(placed.room_id, placed.dp_rank) != placed.dp_rank
            self.placed[placed.room_id] = placed.dp_rank
        return bootstrap_pb2.PlaceRoomsResponse(moved_count=moved)

    def LookupRooms(self, request: Any, context: Any) -> Any:
        """Answers those that are there."""
        self.waits.append(request.wait.ToSeconds())
        return bootstrap_pb2.LookupRoomsResponse(
            placements=[
                bootstrap_pb2.RoomPlacement(room_id=room, dp_rank=self.placed[room])
                for room in request.room_ids
                if room in self.placed
            ]
        )
