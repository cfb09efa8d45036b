"""A fake transfer agent: a real gRPC server on a unix socket, with pools in shared memory.

Run by itself (`python fake_agent.py PREFILL_SOCKET DECODE_SOCKET`) it is a pair of them that
prints "ready" and lives until its standard input ends.
"""

from __future__ import annotations

import os
import queue
import secrets
import sys
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from pageferry import pool_layout
from pageferry.agent.v1 import agent_pb2, agent_pb2_grpc
from pageferry.topology.v1 import topology_pb2

from fake_fabric import Fabric, Side, detail

_EVENTS_A_FRAME = 64


class FakeAgent(agent_pb2_grpc.TransferAgentServicer):
    """One agent. `epoch_after` is the number of GetAgent calls until its cell is claimed."""

    def __init__(self, fabric: Fabric, socket: str | Path, agent_id: str, epoch_after: int = 0):
        """Starts serving."""
        self.fabric = fabric
        self.target = f"unix:{socket}"
        self.agent_id = agent_id
        self.epoch_after = epoch_after
        self.sides: dict[int, Side] = {}
        self.earlier: list[Side] = []
        self.commands: list[agent_pb2.EngineCommand] = []
        self.pools: dict[str, tuple[agent_pb2.Pool, np.memmap]] = {}
        self.engine: agent_pb2.RegisterEngineRequest | None = None
        self.outbox: queue.Queue[agent_pb2.AgentEvent | None] | None = None
        fabric.agents.append(self)
        self.server = grpc.server(
            futures.ThreadPoolExecutor(8), options=[("grpc.http2.min_ping_interval_ms", 5000)]
        )
        agent_pb2_grpc.add_TransferAgentServicer_to_server(self, self.server)
        self.server.add_insecure_port(self.target)
        self.server.start()

    def stop(self) -> None:
        """Cuts all streams and removes the pools."""
        with self.fabric.lock:
            if self in self.fabric.agents:
                self.fabric.agents.remove(self)
        if self.outbox is not None:
            self.outbox.put(None)
        self.server.stop(0).wait()
        for name in list(self.pools):
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        pool, _ = self.pools.pop(name)
        Path("/dev/shm" + pool.shm_name).unlink(missing_ok=True)

    def ref(self) -> topology_pb2.AgentRef:
        """Who it is."""
        return topology_pb2.AgentRef(agent_id=self.agent_id, epoch=0 if self.epoch_after else 3)

    def state(self) -> int:
        """What it is doing."""
        if self.engine is None:
            return agent_pb2.AGENT_STATE_IDLE
        waits = self.epoch_after > 0
        return agent_pb2.AGENT_STATE_REGISTERING if waits else agent_pb2.AGENT_STATE_READY

    def _abort(self, context: Any, code: grpc.StatusCode, reason: str, **metadata: str) -> None:
        error = detail(code.value[0], reason, f"fake {reason}", **metadata)
        details = (("grpc-status-details-bin", error.SerializeToString()),)
        context.set_trailing_metadata(details)
        context.abort(code, error.message)

    # --- pools and engine ---

    def GetAgent(self, request: Any, context: Any) -> agent_pb2.GetAgentResponse:
        """Answers; each call brings the claim of the cell nearer."""
        self.epoch_after = max(0, self.epoch_after - 1)
        return agent_pb2.GetAgentResponse(
            agent=self.ref(),
            state=self.state(),
            engine=self.engine,
            pools=[pool for pool, _ in self.pools.values()],
            transports=["fake"],
            peer_endpoint=topology_pb2.Endpoint(host="::1", port=7),
            version="fake",
        )

    def CreatePool(self, request: Any, context: Any) -> agent_pb2.CreatePoolResponse:
        """Makes shared memory with a header, or gives the same again."""
        size = -(-request.size_bytes // 4096) * 4096
        if request.name in self.pools:
            pool = self.pools[request.name][0]
            if pool.size_bytes != size:
                self._abort(context, grpc.StatusCode.ALREADY_EXISTS, "POOL_EXISTS")
            return agent_pb2.CreatePoolResponse(pool=pool, adopted=True)
        return agent_pb2.CreatePoolResponse(pool=self._make(request, size, size))

    def _make(self, request: Any, size: int, inside: int) -> agent_pb2.Pool:
        """Shared memory with a header and `inside` bytes of data."""
        pool = agent_pb2.Pool(
            name=request.name,
            size_bytes=size,
            memory_kind=request.memory_kind,
            shm_name=f"/pageferry-fake-{os.getpid()}-{secrets.token_hex(4)}-{request.name}",
            mapping_bytes=pool_layout.DATA_OFFSET + inside,
            data_offset_bytes=pool_layout.DATA_OFFSET,
        )
        path = Path("/dev/shm" + pool.shm_name)
        memory = np.memmap(path, np.uint8, "w+", shape=(pool.mapping_bytes,))
        header = pool_layout.PoolHeader(
            pool_layout.MAGIC, pool_layout.VERSION, pool_layout.SEAL_COUNT, secrets.randbits(64),
            pool_layout.DATA_OFFSET, inside, 1, self.agent_id,
        ).pack()  # fmt: skip
        memory[: len(header)] = np.frombuffer(header, np.uint8)
        self.pools[request.name] = (pool, memory)
        return pool

    def ReleasePool(self, request: Any, context: Any) -> agent_pb2.ReleasePoolResponse:
        """Removes a pool that the engine does not use."""
        if request.name not in self.pools:
            self._abort(context, grpc.StatusCode.NOT_FOUND, "POOL_NOT_FOUND")
        if self.engine is not None:
            self._abort(context, grpc.StatusCode.FAILED_PRECONDITION, "IN_USE", by="engine")
        self._unlink(request.name)
        return agent_pb2.ReleasePoolResponse()

    def ImportPool(self, request: Any, context: Any) -> agent_pb2.ImportPoolResponse:
        """Makes the control file only; the engine's memory is the test's."""
        pool = self._make(request, request.size_bytes, 0)
        pool.imported, pool.read_only = True, request.read_only
        return agent_pb2.ImportPoolResponse(pool=pool)

    def Drain(self, request: Any, context: Any) -> agent_pb2.DrainResponse:
        """Counts the rooms."""
        return agent_pb2.DrainResponse(finished_count=len(self.sides))

    def RegisterEngine(self, request: Any, context: Any) -> agent_pb2.RegisterEngineResponse:
        """Takes the engine."""
        if self.engine is not None and self.engine != request:
            self._abort(context, grpc.StatusCode.ALREADY_EXISTS, "ENGINE_ALREADY_REGISTERED")
        self.engine = request
        return agent_pb2.RegisterEngineResponse(agent=self.ref())

    def _view(self, pool_name: str, offset: int, item: int, count: int) -> np.ndarray:
        start = pool_layout.DATA_OFFSET + offset
        return self.pools[pool_name][1][start : start + item * count].reshape(count, item)

    def entries(self) -> list[tuple[int, int, int]]:
        """Keys of the registered entries."""
        assert self.engine is not None
        return [(e.layer, e.kind, e.part) for e in self.engine.profile.entries]

    def entry(self, key: tuple[int, int, int]) -> np.ndarray:
        """One entry as [page][byte]."""
        assert self.engine is not None
        e = next(e for e in self.engine.profile.entries if (e.layer, e.kind, e.part) == key)
        return self._view(e.pool_name, e.offset_bytes, e.item_bytes, e.page_count)

    def aux_names(self) -> list[str]:
        """Names of the registered aux buffers."""
        assert self.engine is not None
        return [aux.name for aux in self.engine.profile.aux]

    def aux(self, name: str) -> np.ndarray:
        """One aux buffer as [slot][byte]."""
        assert self.engine is not None
        a = next(a for a in self.engine.profile.aux if a.name == name)
        return self._view(a.pool_name, a.offset_bytes, a.item_bytes, a.slot_count)

    # --- session ---

    def tell(self, **event: Any) -> None:
        """Queues one event for the engine."""
        if self.outbox is not None:
            self.outbox.put(agent_pb2.AgentEvent(**event))

    def Session(self, requests: Any, context: Any) -> Any:
        """Yields frames until the engine has ended its half, or `stop`."""
        first = next(requests, None)
        if first is None or len(first.commands) != 1 or not first.commands[0].HasField("open"):
            self._abort(context, grpc.StatusCode.FAILED_PRECONDITION, "OUT_OF_ORDER")
        if self.engine is None or self.engine.engine_id != first.commands[0].open.engine_id:
            self._abort(context, grpc.StatusCode.FAILED_PRECONDITION, "ENGINE_NOT_REGISTERED")
        if self.outbox is not None:
            self._abort(context, grpc.StatusCode.ALREADY_EXISTS, "ENGINE_ALREADY_REGISTERED")
        outbox = self.outbox = queue.Queue()
        context.add_callback(lambda: outbox.put(None))
        self.tell(opened=agent_pb2.SessionOpened(agent=self.ref(), state=self.state()))
        reader = threading.Thread(target=self._read, args=(requests, outbox), daemon=True)
        reader.start()
        while (event := outbox.get()) is not None:
            batch = [event]
            while len(batch) < _EVENTS_A_FRAME and not outbox.empty():
                if (more := outbox.get()) is None:
                    outbox.put(None)
                    break
                batch.append(more)
            yield agent_pb2.SessionResponse(events=batch)

    def _read(self, requests: Any, outbox: queue.Queue) -> None:
        try:
            for request in requests:
                for command in request.commands:
                    with self.fabric.lock:
                        self.commands.append(command)
                        self._do(command)
        except grpc.RpcError:
            pass
        with self.fabric.lock:
            for side in self.sides.values():
                lost = detail(14, "ENGINE_LOST", "fake engine lost")
                self.fabric.fail(side, lost, detail(14, "PEER_LOST", "fake peer lost"))
            outbox.put(None)
            self.outbox = None

    def _do(self, command: agent_pb2.EngineCommand) -> None:
        kind = command.WhichOneof("command")
        body = getattr(command, kind)
        room = body.room
        side = self.sides.get(room.room_id)
        if kind in ("open_send", "open_receive"):
            if side is not None and not side.over:
                error = detail(6, "DUPLICATE_ROOM", "fake duplicate")
                self.tell(refused=agent_pb2.CommandRefused(room=room, command=kind, error=error))
                return
            if side is not None:
                self.earlier.append(side)
            side = self.sides[room.room_id] = Side(self, room.room_id, room.attempt)
            if kind == "open_receive":
                side.grant, side.prefill_engine_id = body, body.prefill_engine_id
            side.tell()
        elif side is None or (kind != "close_room" and side.over):
            error = detail(5, "ROOM_NOT_FOUND", "fake not found")
            self.tell(refused=agent_pb2.CommandRefused(room=room, command=kind, error=error))
            return
        elif kind == "send_chunk":
            side.chunks.append(body)
        elif kind == "abort":
            own = detail(10, "ABORTED", "fake abort", detail=body.detail)
            self.fabric.fail(side, own, detail(10, "PEER_ABORTED", "fake", detail=body.detail))
        elif kind == "fail_room":
            error = detail(10, "PEER_ENGINE_FAILED", "fake", detail=body.detail)
            self.fabric.fail(side, detail(10, "ABORTED", "fake", detail=body.detail), error)
        elif kind == "close_room":
            del self.sides[room.room_id]
        self.fabric.step(room.room_id)

    def ListRooms(self, request: Any, context: Any) -> agent_pb2.ListRoomsResponse:
        """All rooms on one page."""
        with self.fabric.lock:
            rooms = [
                agent_pb2.RoomInfo(
                    room=agent_pb2.RoomRef(room_id=side.room_id, attempt=side.attempt),
                    state=side.state,
                    drained=side.drained,
                )
                for side in (*self.sides.values(), *self.earlier)
            ]
        return agent_pb2.ListRoomsResponse(rooms=rooms)


def main() -> None:
    """Serves a pair until standard input ends."""
    fabric = Fabric()
    agents = [FakeAgent(fabric, path, f"agent-{n}") for n, path in enumerate(sys.argv[1:3])]
    print("ready", flush=True)
    sys.stdin.read()
    for agent in agents:
        agent.stop()


if __name__ == "__main__":
    main()
