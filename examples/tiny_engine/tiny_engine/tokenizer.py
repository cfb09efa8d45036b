"""Text to tokens and back: byte-level BPE with the vocabulary of the model file."""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tiny_engine.model_file import ensure_model, exclusive, model_dir
from tiny_engine.weights import open_gguf

SYSTEM_PROMPT = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_FORMAT = 1
_CONTROL = 3


class ChatTokenizer:
    """Encodes, decodes, and frames a conversation as ChatML. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Text from outside can then never spell a control token.
        self._tokenizer.encode_special_tokens = True
        self._turn_start = self._control("<|im_start|>")
        self.turn_end = self._control("<|im_end|>")
        self.stop_tokens = frozenset({self.turn_end, self._control("<|endoftext|>")})
        alphabet = {symbol: byte for byte, symbol in _byte_symbols().items()}
        self._bytes: list[bytes] = []
        control = tokenizer.get_added_tokens_decoder()
        for index in range(tokenizer.get_vocab_size()):
            piece = "" if index in control else tokenizer.id_to_token(index) or ""
            self._bytes.append(bytes(alphabet[symbol] for symbol in piece))

    def _control(self, piece: str) -> int:
        token = self._tokenizer.token_to_id(piece)
        if token is None:
            raise ValueError(f"the tokenizer does not know {piece}")
        return token

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text; nothing in it is taken for a control token."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`; control tokens are left out, broken UTF-8 becomes U+FFFD."""
        return b"".join(self._bytes[token] for token in tokens).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for a control token."""
        return self._bytes[token]

    def encode_chat(self, prompt: str, system: str = SYSTEM_PROMPT) -> list[int]:
        """Tokens of a conversation that waits for the assistant's answer to `prompt`."""
        tokens: list[int] = []
        for role, content in (("system", system), ("user", prompt)):
            tokens += [self._turn_start, *self.encode(f"{role}\n{content}"), self.turn_end]
            tokens += self.encode("\n")
        return [*tokens, self._turn_start, *self.encode("assistant\n")]


class StreamDecoder:
    """Text of one answer, token by token; holds bytes back until a character is whole."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that `token` completes; may be empty."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """What is left at the end: U+FFFD if the answer stopped inside a character."""
        return self._decoder.decode(b"", final=True)


def load_tokenizer() -> ChatTokenizer:
    """The model's tokenizer, from the cache if it was built before.

    Raises ModelUnavailableError when there is neither.
    """
    path = model_dir() / f"tokenizer-v{_FORMAT}.json"
    if not path.is_file():
        model = ensure_model()
        with exclusive("tokenizer"):
            if not path.is_file():
                partial = path.with_suffix(f".tmp{os.getpid()}")
                _build(model).save(str(partial))
                os.replace(partial, path)
    return ChatTokenizer(Tokenizer.from_file(str(path)))


def _build(model: Path) -> Tokenizer:
    fields = open_gguf(model).fields
    pieces = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    # The file's "smollm" splitter: digits one by one, then GPT-2's rule.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(piece, special=True, normalized=False)
            for piece, kind in zip(pieces, kinds, strict=True)
            if kind == _CONTROL
        ]
    )
    return tokenizer


def _byte_symbols() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in symbols)
    symbols.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    return symbols
