"""The control area at the front of a pool's shared memory.

The C++ side is libs/transport/pool_layout.h; a change there comes with a new version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC = int.from_bytes(b"PGFERRY1", "little")
VERSION = 1
SEAL_TABLE_OFFSET = 4096
SEAL_COUNT = 65_536
DATA_OFFSET = 2 << 20
GENERATION_OFFSET = 40

# magic, layout version, seal count, nonce, data offset, data size, generation, agent id
_HEADER = struct.Struct("=QIIQqqQ136s")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class PoolHeader:
    """What the header said when it was read."""

    magic: int
    version: int
    seal_count: int
    nonce: int
    data_offset: int
    data_size: int
    generation: int
    agent_id: str

    @classmethod
    def unpack(cls, control: bytes) -> PoolHeader:
        """Reads a header from its bytes (at least HEADER_BYTES)."""
        magic, version, seals, nonce, offset, size, generation, agent_id = _HEADER.unpack_from(
            control
        )
        name = agent_id.split(b"\0", 1)[0].decode("utf-8", "replace")
        return cls(magic, version, seals, nonce, offset, size, generation, name)

    def pack(self) -> bytes:
        """The bytes of the header, for fakes and tests."""
        return _HEADER.pack(
            self.magic,
            self.version,
            self.seal_count,
            self.nonce,
            self.data_offset,
            self.data_size,
            self.generation,
            self.agent_id.encode()[:135],
        )
