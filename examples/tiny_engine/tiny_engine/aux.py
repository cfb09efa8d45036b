"""The aux row: what decode needs of a request besides its KV pages, in 256 bytes.

Little-endian; a CRC-32 at the end tells a whole row from a part of one, a zeroed slot, or noise.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tiny_engine.sampling import Sampler

AUX_BYTES = 256
_MAGIC = b"PFTE"
_VERSION = 1
# magic, version, unused, room, attempt, prompt tokens, first token, new tokens, top k, temperature,
# seed, counter, prompt digest
_FORMAT = struct.Struct("<4sHHqiiiiidQQ8s")
_CRC = struct.Struct("<I")


class AuxError(ValueError):
    """The bytes are not a whole aux row of this version."""


def prompt_digest(tokens: Sequence[int]) -> bytes:
    """Eight bytes that tell prompts apart."""
    packed = np.asarray(tokens, dtype="<i4").tobytes()
    return hashlib.blake2b(packed, digest_size=8).digest()


def aux_slot(buffer: np.ndarray, slot: int) -> np.ndarray:
    """The 256 bytes of `slot` in a uint8 aux buffer, as a live view."""
    if slot < 0 or (slot + 1) * AUX_BYTES > buffer.nbytes:
        raise IndexError(f"aux slot {slot} is outside a buffer of {buffer.nbytes} bytes")
    return buffer[slot * AUX_BYTES : (slot + 1) * AUX_BYTES]


@dataclass(frozen=True)
class AuxRow:
    """One request at the moment when prefill is done: its first token and how to go on."""

    room_id: int
    attempt: int
    prompt_tokens: int
    first_token: int
    max_new_tokens: int
    sampler: Sampler = field(default_factory=Sampler)
    prompt_digest: bytes = bytes(8)

    def pack(self) -> bytes:
        """The row as 256 bytes. Raises AuxError if a number does not fit its field."""
        sampler = self.sampler
        try:
            body = _FORMAT.pack(
                _MAGIC,
                _VERSION,
                0,
                self.room_id,
                self.attempt,
                self.prompt_tokens,
                self.first_token,
                self.max_new_tokens,
                sampler.top_k,
                sampler.temperature,
                sampler.seed,
                sampler.counter,
                self.prompt_digest,
            )
        except struct.error as error:
            raise AuxError(str(error)) from error
        body = body.ljust(AUX_BYTES - _CRC.size, b"\0")
        return body + _CRC.pack(zlib.crc32(body))

    def pack_into(self, target: np.ndarray | memoryview) -> None:
        """Writes the row into a slot of exactly 256 bytes."""
        view = memoryview(target).cast("B")
        if view.nbytes != AUX_BYTES:
            raise AuxError(f"an aux slot has {AUX_BYTES} bytes, not {view.nbytes}")
        view[:] = self.pack()

    @classmethod
    def unpack(cls, source: bytes | np.ndarray | memoryview) -> AuxRow:
        """Reads a row. Raises AuxError on anything but a whole row of this version."""
        data = bytes(source)
        if len(data) != AUX_BYTES:
            raise AuxError(f"an aux row has {AUX_BYTES} bytes, not {len(data)}")
        if _CRC.unpack_from(data, AUX_BYTES - _CRC.size)[0] != zlib.crc32(data[: -_CRC.size]):
            raise AuxError("the aux row is not whole: its checksum differs")
        values = _FORMAT.unpack_from(data)
        magic, version, _, room_id, attempt, prompt, first, new, top_k = values[:9]
        temperature, seed, counter, digest = values[9:]
        if magic != _MAGIC or version != _VERSION:
            raise AuxError(f"not an aux row of version {_VERSION}")
        if min(prompt, first, new) < 0:
            raise AuxError("the aux row holds a negative length or token")
        try:
            sampler = Sampler(temperature, top_k, seed, counter)
        except ValueError as error:
            raise AuxError(str(error)) from error
        return cls(room_id, attempt, prompt, first, new, sampler, digest)
