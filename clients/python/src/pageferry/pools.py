"""Pools: memory that an agent owns and the engine maps, or the other way round."""

from __future__ import annotations

import logging
import math
import mmap
import os
from collections.abc import Sequence
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from pageferry import pool_layout
from pageferry._checks import check_name, check_range, invalid
from pageferry.agent.v1 import agent_pb2
from pageferry.errors import FailedPrecondition, NotFound, PageferryError
from pageferry.kinds import MemoryKind

_log = logging.getLogger("pageferry")


def import_request(
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
) -> agent_pb2.ImportPoolRequest:
    """The request of `Agent.import_pool`, checked."""
    if memory is not None:
        # A file descriptor is this process's: the agent needs a path that is good for it too.
        if isinstance(memory, SharedMemory):
            shm_name = shm_name or "/" + memory.name.removeprefix("/")
            whole = memory.size
        else:
            memory_file = memory_file or f"/proc/{os.getpid()}/fd/{memory}"
            whole = os.fstat(memory).st_size
        size_bytes = whole - data_offset_bytes if size_bytes is None else size_bytes
    check_name("name", name, 64)
    check_range("size_bytes", size_bytes or 0, 4096, 1 << 44)
    handles: dict[str, Any] = {
        "shm_name": shm_name,
        "memory_file": memory_file,
        "device_handle": device_handle,
    }
    given = {key: value for key, value in handles.items() if value}
    if len(given) != 1:
        raise invalid("give exactly one handle", "handle", sorted(given), sorted(handles))
    return agent_pb2.ImportPoolRequest(
        name=name,
        size_bytes=size_bytes,
        memory_kind=int(kind),  # type: ignore[arg-type]
        device=device,
        data_offset_bytes=data_offset_bytes,
        read_only=read_only,
        **given,
    )


class Pool:
    """A pool, mapped into this process where its memory is the host's.

    Of an imported pool both are mapped, the engine's memory and the agent's control file.
    Arrays of a pool keep the mapping alive: `close` never takes memory from under an array, and
    what it cannot unmap at once goes with the last array. Thread-safe, but `close` must not run
    beside other calls.
    """

    def __init__(
        self,
        message: agent_pb2.Pool,
        *,
        adopted: bool = False,
        handle: agent_pb2.ImportPoolRequest | None = None,
    ) -> None:
        """Maps what the agent described; use `Agent.create_pool` or `Agent.import_pool`.

        `handle` names the engine's own memory.
        NotFound: no such shared memory on this host (is the agent on another one?).
        FailedPrecondition: it is there, but is not what the agent described.
        """
        self.name = message.name
        self.size_bytes = message.size_bytes
        self.kind = MemoryKind(message.memory_kind)
        self.shm_name = message.shm_name
        self.data_offset_bytes = message.data_offset_bytes
        self.device_handle: bytes = message.device_handle
        self.adopted = adopted
        self.imported = message.imported
        self.read_only = message.read_only
        self.huge_bytes = message.huge_bytes
        self.huge_pages_note = message.huge_pages_note
        self.nonce = 0
        self._mapping: mmap.mmap | None = None
        self._data: mmap.mmap | None = None
        if self.shm_name:
            self._mapping = self._map(message.mapping_bytes)
            try:
                self._check_header()
                if handle is not None:
                    self._data = self._map_engines(handle)
            except PageferryError:
                self.close()
                raise

    def _map_engines(self, handle: agent_pb2.ImportPoolRequest) -> mmap.mmap:
        path = handle.memory_file or "/dev/shm/" + handle.shm_name.removeprefix("/")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                return mmap.mmap(fd, self.size_bytes, offset=handle.data_offset_bytes)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            raise self._unusable(f"cannot map the engine's own {path}: {error}") from error

    def _map(self, mapping_bytes: int) -> mmap.mmap:
        # Not multiprocessing.shared_memory: its resource tracker would unlink the agent's memory.
        path = "/dev/shm/" + self.shm_name.removeprefix("/")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise NotFound(
                f"pool {self.name!r}: this host has no shared memory {self.shm_name}",
                reason="POOL_NOT_FOUND",
                metadata={"handle": self.shm_name},
            ) from error
        except OSError as error:
            raise self._unusable(f"cannot open shared memory: {error.strerror}") from error
        try:
            size = os.fstat(fd).st_size
            if size < mapping_bytes or mapping_bytes < self.data_offset_bytes + self._inside:
                raise self._unusable(f"shared memory has {size} bytes, not {mapping_bytes}")
            return mmap.mmap(fd, mapping_bytes)
        finally:
            os.close(fd)

    @property
    def _inside(self) -> int:
        """Bytes of data behind header and seals."""
        return 0 if self.imported else self.size_bytes

    def _check_header(self) -> None:
        header = self.header()
        if header.magic != pool_layout.MAGIC or header.version != pool_layout.VERSION:
            raise self._unusable(f"pool layout version {header.version} is not known here")
        if (header.data_offset, header.data_size) != (self.data_offset_bytes, self._inside):
            raise self._unusable("header and agent differ about size or offset of the data")
        self.nonce = header.nonce

    def _unusable(self, message: str) -> FailedPrecondition:
        return FailedPrecondition(
            f"pool {self.name!r}: {message}",
            reason="BAD_HANDLE",
            metadata={"handle": self.shm_name},
        )

    @property
    def mapped(self) -> bool:
        """True until `close`; False for memory of a device."""
        return self._mapping is not None

    def _live_mapping(self) -> mmap.mmap:
        if self._mapping is None:
            raise FailedPrecondition(f"pool {self.name!r} is closed, or not memory of the host")
        return self._mapping

    def header(self) -> pool_layout.PoolHeader:
        """The control area's header as it is now."""
        return pool_layout.PoolHeader.unpack(self._live_mapping()[: pool_layout.HEADER_BYTES])

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """All data of the pool as bytes, writable, not copied."""
        mapping = self._live_mapping()
        if self._data is not None:
            return np.frombuffer(self._data, np.uint8, self.size_bytes)
        if self.imported:
            raise FailedPrecondition(f"pool {self.name!r} is memory that is not mapped here")
        return np.frombuffer(mapping, np.uint8, self.size_bytes, self.data_offset_bytes)

    def array(
        self, offset_bytes: int, shape: int | Sequence[int], dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """A writable view of the data from `offset_bytes`, in C order, not copied.

        InvalidArgument where it does not lie within the pool.
        """
        kind = np.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        end = offset_bytes + math.prod(sizes) * kind.itemsize
        if offset_bytes < 0 or any(size < 0 for size in sizes) or end > self.size_bytes:
            raise invalid(
                f"array of shape {sizes} and type {kind} at {offset_bytes} does not lie within "
                f"pool {self.name!r}",
                "offset_bytes",
                offset_bytes,
                f"0..{self.size_bytes}",
            )
        return self.data[offset_bytes:end].view(kind).reshape(sizes)

    def bump_generation(self) -> int:
        """Breaks every seal of the pool at once, for when the agent that made them has gone.

        No read of this pool by another agent that has not ended yet can end in SUCCESS after
        this. The session calls it when it loses its agent. Returns the new generation.
        """
        word = np.frombuffer(self._live_mapping(), np.uint64, 1, pool_layout.GENERATION_OFFSET)
        word += np.uint64(1)
        generation = int(word[0])
        _log.info("pool %s generation %d", self.name, generation)
        return generation

    def close(self) -> None:
        """Unmaps the pool, now or with the last array that shows it. Does not release it."""
        mappings = (self._mapping, self._data)
        self._mapping = self._data = None
        for mapping in mappings:
            try:
                if mapping is not None:
                    mapping.close()
            except BufferError:
                _log.debug("pool %s stays mapped while arrays show it", self.name)

    def __enter__(self) -> Pool:
        """Gives the pool."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the mapping."""
        self.close()

    def __repr__(self) -> str:
        """Name, size and kind."""
        return f"Pool({self.name!r}, {self.size_bytes} bytes, {self.kind.name})"
