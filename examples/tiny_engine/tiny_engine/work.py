"""What a router asks of an engine, checked as it comes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tiny_engine.sampling import Sampler
from tiny_engine.wire import Message


class BadWorkError(ValueError):
    """The message does not describe work that an engine can do."""


@dataclass(frozen=True)
class Work:
    """One request, the same message for both engines.

    Decode takes `prefill_engine`, `prefill_dp_rank` and `digest` from it, and sampling from the aux
    row; prefill takes the rest. `wait_for_grant` makes prefill wait until decode has granted pages
    before it computes;
    `digest` makes decode tell the SHA-256 of each of the prompt's pages when they have come.
    """

    room: int
    tokens: tuple[int, ...]
    max_tokens: int
    prefill_engine: str
    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0
    wait_for_grant: bool = False
    digest: bool = False
    prefill_dp_rank: int | None = None  # None: decode's agent finds it

    def sampler(self) -> Sampler:
        """The state of sampling before the first token."""
        return Sampler(self.temperature, self.top_k, self.seed)

    def to_message(self) -> Message:
        """The message for an engine."""
        return {"op": "start", **asdict(self)}

    @classmethod
    def from_message(cls, message: Message, vocabulary: int, longest_tokens: int) -> Work:
        """Reads a message. Raises BadWorkError for what an engine must not begin with."""
        fields = {key: value for key, value in message.items() if key != "op"}
        try:
            work = cls(**{**fields, "tokens": tuple(fields["tokens"])})
            work._check(vocabulary, longest_tokens)
        except (KeyError, TypeError, ValueError) as error:
            raise BadWorkError(str(error) or type(error).__name__) from error
        return work

    def _check(self, vocabulary: int, longest_tokens: int) -> None:
        _whole("room", self.room, 0, (1 << 63) - 1)
        _whole("max_tokens", self.max_tokens, 1, longest_tokens)
        length = len(self.tokens)
        _whole("tokens of prompt and answer", length + self.max_tokens, 2, longest_tokens)
        if not length or not _all_within(self.tokens, vocabulary):
            raise ValueError(f"a prompt has tokens from 0 to {vocabulary - 1}, and at least one")
        if not isinstance(self.prefill_engine, str):
            raise ValueError("prefill_engine is a name")
        if self.prefill_dp_rank is not None:
            _whole("prefill_dp_rank", self.prefill_dp_rank, 0, 65_535)
        _whole("top_k", self.top_k, 0, vocabulary)
        _whole("seed", self.seed, 0, (1 << 64) - 1)
        self.sampler()


def _whole(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")


def _all_within(tokens: Sequence[Any], vocabulary: int) -> bool:
    return all(type(token) is int and 0 <= token < vocabulary for token in tokens)
