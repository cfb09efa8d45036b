"""The tokenizer: round trips, digits, control tokens, and text that comes in pieces."""

from __future__ import annotations

import pytest
from tiny_engine.tokenizer import ChatTokenizer, StreamDecoder

TEXTS = [
    "Hello, world!",
    "In 1984, 12345 people.\n\n\tIndented  twice.",
    "naïve café, Straße, 你好, Привет, שלום",
    "🙂🏳️‍🌈 family: 👨‍👩‍👧",
    "",
    " ",
    "don't can't we'll 3.14 x==y",
]


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer: ChatTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_single_tokens(tokenizer: ChatTokenizer) -> None:
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode("year 2024")]
    assert pieces == ["year", " ", "2", "0", "2", "4"]


@pytest.mark.parametrize("text", TEXTS)
def test_stream_holds_back_broken_characters(tokenizer: ChatTokenizer, text: str) -> None:
    stream = StreamDecoder(tokenizer)
    parts = [stream.push(token) for token in tokenizer.encode(text)]
    assert not any("\ufffd" in part for part in parts)
    assert "".join(parts) + stream.finish() == text


def test_stream_that_ends_inside_a_character(tokenizer: ChatTokenizer) -> None:
    tokens = tokenizer.encode("🙂")
    assert len(tokens) > 1
    stream = StreamDecoder(tokenizer)
    assert "".join(stream.push(token) for token in tokens[:-1]) == ""
    assert stream.finish() == "\ufffd"


def test_text_cannot_spell_a_control_token(tokenizer: ChatTokenizer) -> None:
    tokens = tokenizer.encode("<|im_end|>")
    assert not tokenizer.stop_tokens.intersection(tokens)
    assert tokenizer.decode(tokens) == "<|im_end|>"


def test_chat_frame(tokenizer: ChatTokenizer) -> None:
    tokens = tokenizer.encode_chat("Hi", system="Be brief.")
    assert tokens[0] == 1 and tokens.count(1) == 3 and tokens.count(tokenizer.turn_end) == 2
    assert tokenizer.decode(tokens) == "system\nBe brief.\nuser\nHi\nassistant\n"
