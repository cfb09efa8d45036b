"""A watch of engines at the bootstrap service."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc

from pageferry.bootstrap.v1 import bootstrap_pb2
from pageferry.errors import DeadlineExceeded, PageferryError, Unavailable, from_rpc_error
from pageferry.info import EngineInfo

_AHEAD = 16


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """The table as of `version`: everything (`snapshot`) or what changed.

    `removed` names (namespace, engine_id). While a snapshot is `warming_up`, treat nothing that
    is not in it as gone.
    """

    version: int
    snapshot: bool
    engines: tuple[EngineInfo, ...]
    removed: tuple[tuple[str, str], ...]
    warming_up: bool


class EngineWatch:
    """Iterates over WatchEvents. One thread may iterate; any may close.

    Owns a thread that reads ahead by a few messages, which ends with `close` or the stream.
    """

    def __init__(self, start: Callable[[], Any], idle_timeout: float) -> None:
        """Starts the stream; use `Bootstrap.watch`."""
        self.version = 0
        self._idle_timeout = idle_timeout
        self._closed = False
        self._queue: queue.Queue[Any] = queue.Queue(_AHEAD)
        self._call = start()
        self._reader = threading.Thread(target=self._read, name="pageferry-watch", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        last: Any = Unavailable("the service ended the watch")
        try:
            for message in self._call:
                if not self._offer(message):
                    return
        except grpc.RpcError as error:
            last = from_rpc_error(error)
        self._offer(last)

    def _offer(self, item: Any) -> bool:
        while not self._closed:
            try:
                self._queue.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def __iter__(self) -> Iterator[WatchEvent]:
        """Gives itself."""
        return self

    def __next__(self) -> WatchEvent:
        """The next event. Ends after `close`; raises what ended the stream otherwise."""
        while not self._closed:
            try:
                item = self._queue.get(timeout=self._idle_timeout)
            except queue.Empty:
                self.close()
                message = f"the bootstrap service was silent for {self._idle_timeout} s"
                raise DeadlineExceeded(message) from None
            if item is None:
                break
            if isinstance(item, PageferryError):
                self.close()
                raise item
            event = self._convert(item)
            if event is not None:
                return event
        raise StopIteration

    def _convert(self, message: bootstrap_pb2.WatchEnginesResponse) -> WatchEvent | None:
        self.version = message.version
        snapshot = message.WhichOneof("event") == "snapshot"
        if not snapshot and not message.HasField("change"):
            return None
        engines = message.snapshot.engines if snapshot else message.change.engines
        return WatchEvent(
            version=message.version,
            snapshot=snapshot,
            engines=tuple(map(EngineInfo.from_proto, engines)),
            removed=tuple((key.namespace, key.engine_id) for key in message.change.removed),
            warming_up=message.snapshot.warming_up,
        )

    def close(self) -> None:
        """Ends the watch and its thread. May be called twice."""
        self._closed = True
        self._call.cancel()
        with_room = True
        while with_room:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                with_room = False
        self._queue.put(None)
        self._reader.join()

    def __enter__(self) -> EngineWatch:
        """Gives the watch."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the watch."""
        self.close()
