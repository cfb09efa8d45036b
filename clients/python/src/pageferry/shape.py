"""Sizes of an engine and the place of one rank in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pageferry._checks import check_range
from pageferry.topology.v1 import topology_pb2


@dataclass(frozen=True, slots=True, order=True)
class RankCoordinate:
    """One rank of a shape."""

    dp: int = 0
    cp: int = 0
    tp: int = 0
    pp: int = 0

    def to_proto(self) -> topology_pb2.RankCoordinate:
        """The message."""
        return topology_pb2.RankCoordinate(dp=self.dp, cp=self.cp, tp=self.tp, pp=self.pp)

    @classmethod
    def from_proto(cls, message: topology_pb2.RankCoordinate) -> RankCoordinate:
        """From the message."""
        return cls(message.dp, message.cp, message.tp, message.pp)


@dataclass(frozen=True, slots=True)
class ParallelShape:
    """Sizes of the four parallel dimensions."""

    dp: int = 1
    cp: int = 1
    tp: int = 1
    pp: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.dp * self.cp * self.tp * self.pp

    def coordinates(self) -> Iterator[RankCoordinate]:
        """Every rank, in rank order (dp, pp, cp, tp)."""
        for dp in range(self.dp):
            for pp in range(self.pp):
                for cp in range(self.cp):
                    for tp in range(self.tp):
                        yield RankCoordinate(dp, cp, tp, pp)

    def check(self, coordinate: RankCoordinate | None = None) -> None:
        """Raises InvalidArgument for sizes out of range, or a coordinate outside the shape."""
        for name in ("dp", "cp", "tp", "pp"):
            check_range(f"shape.{name}", getattr(self, name), 1, 65_536)
        check_range("shape (product of the sizes)", self.size, 1, 1 << 20)
        if coordinate is not None:
            for name in ("dp", "cp", "tp", "pp"):
                most = getattr(self, name) - 1
                check_range(f"coordinate.{name}", getattr(coordinate, name), 0, most)

    def to_proto(self) -> topology_pb2.ParallelShape:
        """The message."""
        return topology_pb2.ParallelShape(dp=self.dp, cp=self.cp, tp=self.tp, pp=self.pp)

    @classmethod
    def from_proto(cls, message: topology_pb2.ParallelShape) -> ParallelShape:
        """From the message."""
        return cls(message.dp, message.cp, message.tp, message.pp)
