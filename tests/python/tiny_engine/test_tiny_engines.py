"""The two engines, their router and the client library, over fake agents, with the real model."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_engine.kv_cache import KvLayout, PagedKvCache
from tiny_engine.model import Model
from tiny_engine.reference import ReferencePrompt, run_reference
from tiny_engine.router import EngineGoneError, Router
from tiny_engine.sampling import Sampler
from tiny_engine.tokenizer import ChatTokenizer
from tiny_engine.wire import LineSocket

from engine_pair import Pair, running

STORY = "The old lighthouse stood on a cliff above the sea. " * 9


@pytest.fixture
def pair(model: Model, tmp_path: Path) -> Iterator[Pair]:
    with running(model, tmp_path) as made:
        yield made
        assert made.ledger() == [(0, 0), (0, 0)]


def encode(tokenizer: ChatTokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode_chat(text))


def digests(pages: np.ndarray) -> list[str]:
    whole = [pages[:, :, [index]] for index in range(pages.shape[2])]
    return [hashlib.sha256(np.ascontiguousarray(page).tobytes()).hexdigest() for page in whole]


def test_answers_and_pages_equal_one_process(
    pair: Pair, model: Model, tokenizer: ChatTokenizer
) -> None:
    asked = [encode(tokenizer, text) for text in ("Say hello.", STORY + "Why?", "Two colours?")]
    orders = ("grant_first", "send_first", "together")
    rooms = [
        pair.ask(tokens, order=order, temperature=0.9, seed=7)
        for tokens, order in zip(asked, orders, strict=True)
    ]
    for room in rooms:
        pair.answer(room)
    asked.append(encode(tokenizer, STORY + "Who?"))
    rooms.append(pair.ask(asked[-1], order="grant_first", temperature=0.9, seed=7))
    prompts = [
        ReferencePrompt(room, tokens, 6, Sampler(0.9, seed=7))
        for room, tokens in zip(rooms, asked, strict=True)
    ]
    config = model.config
    layout = KvLayout(config.layers, 64, config.kv_heads, config.head_dim)
    expected = run_reference(model, PagedKvCache.allocate(layout), prompts, frozenset(), True)
    for room in rooms:
        assert pair.answer(room) == expected[room].tokens
        received = pair.wait_event(room, "received").data
        assert received["digests"] == digests(expected[room].kv_pages)
        assert received["transport"] == "fake"
    cached = pair.wait_event(rooms[-1], "granted").data["cached_pages"]
    assert cached == (len(encode(tokenizer, STORY)) - 8) // 16
    seen = {pair.wait_event(room, "sent", "prefill").data["order"] for room in rooms}
    assert seen >= {"grant_first", "send_first"}


def test_what_decode_has_is_not_sent(pair: Pair, tokenizer: ChatTokenizer) -> None:
    tokens = encode(tokenizer, STORY)
    pair.answer(pair.ask(tokens))
    room = pair.ask(tokens, order="grant_first")
    pair.answer(room)
    chunks = [
        command.send_chunk
        for command in pair.agents[0].commands
        if command.WhichOneof("command") == "send_chunk" and command.send_chunk.room.room_id == room
    ]
    cached = pair.wait_event(room, "granted").data["cached_pages"]
    assert cached == len(tokens) // 16 > 4
    assert [chunk.first_position for chunk in chunks] == [cached]
    assert pair.wait_event(room, "received").data["pages"] == 1


@pytest.mark.parametrize("order", ["grant_first", "send_first"])
def test_full_prefix_hit_moves_no_page(pair: Pair, tokenizer: ChatTokenizer, order: str) -> None:
    tokens = encode(tokenizer, STORY)[:64]
    first = pair.ask(tokens)
    expected = pair.answer(first)
    second = pair.ask(tokens, order=order)  # type: ignore[arg-type]
    assert pair.answer(second) == expected
    received = [pair.wait_event(room, "received").data for room in (first, second)]
    assert [data["pages"] for data in received] == [4, 0]
    assert received[0]["digests"] == received[1]["digests"]


def test_pages_stay_until_drained(pair: Pair, tokenizer: ChatTokenizer) -> None:
    pair.fabric.hold_copies = pair.fabric.hold_drained = True
    room = pair.ask(encode(tokenizer, "Say hello."))
    pair.wait_event(room, "sent", "prefill")
    pair.wait_event(room, "granted")
    pair.router.abort(room, "the user has left")
    assert pair.failure(room, "prefill")[0] == pair.failure(room, "decode")[0] == "ABORTED"
    assert min(pages for pages, _ in pair.ledger()) > 0
    assert not any(heard.event == "released" for heard in pair.heard + pair.router.poll(0.2))
    pair.fabric.resume()
    pair.answer(room)


def test_few_pages_make_requests_wait(
    model: Model, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    texts = ("Say hello.", "Name a colour.", "Name a fruit.", "Name a river.")
    with running(model, tmp_path, num_pages=5) as pair:
        rooms = [pair.ask(encode(tokenizer, text)) for text in texts]
        assert all(len(pair.answer(room)) == 6 for room in rooms)
        too_long = pair.ask(encode(tokenizer, STORY))
        for side in ("prefill", "decode"):
            assert pair.failure(too_long, side) == ("RESOURCE_EXHAUSTED", "OUT_OF_PAGES")


def test_lost_agent_ends_rooms_with_a_reason(
    model: Model, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    with running(model, tmp_path) as pair:
        pair.fabric.hold_copies = True
        room = pair.ask(encode(tokenizer, "Say hello."))
        pair.wait_event(room, "sent", "prefill")
        pair.agents[0].stop()
        assert pair.failure(room, "prefill") == ("UNAVAILABLE", "AGENT_LOST")
        assert pair.failure(room, "decode") == ("UNAVAILABLE", "PEER_LOST")
        later = pair.ask(encode(tokenizer, "Say hello."))
        assert pair.failure(later, "prefill")[0] == "UNAVAILABLE"
        # Decode learns of this one from the router: no agent ever knew the room.
        assert pair.failure(later, "decode")[0] == "ABORTED"
        pair.wait(lambda: pair.ledger() == [(0, 0), (0, 0)], "the pages to come back")


def test_a_router_that_goes_takes_its_rooms_along(pair: Pair, tokenizer: ChatTokenizer) -> None:
    other = Router([pair.prefill.options.listen], [pair.decode.options.listen])
    other.submit(encode(tokenizer, STORY), 500, Sampler())
    while not any(heard.event == "token" for heard in other.poll(5)):
        pass
    other.close()
    pair.wait(lambda: pair.ledger() == [(0, 0), (0, 0)], "the pages to come back")
    assert pair.answer(pair.ask(encode(tokenizer, "Say hello.")))


def test_bad_work_is_refused(pair: Pair, tokenizer: ChatTokenizer) -> None:
    with pytest.raises(EngineGoneError):
        Router([pair.decode.options.listen], [pair.prefill.options.listen])
    engine = LineSocket.connect(pair.prefill.options.listen, timeout=5)
    answers = engine.messages()
    assert next(answers)["event"] == "hello"
    good = {"op": "start", "room": 5, "tokens": [1, 2], "max_tokens": 3, "prefill_engine": "x"}
    for change in (
        {"room": -1},
        {"room": "5"},
        {"tokens": []},
        {"tokens": [1, 49152]},
        {"tokens": [True]},
        {"tokens": 5},
        {"max_tokens": 0},
        {"max_tokens": 9000},
        {"temperature": -1.0},
        {"seed": 1 << 64},
        {"unknown": 1},
    ):
        engine.send(good | change)
        answer = next(answers)
        assert (answer["event"], answer["code"]) == ("failed", "INVALID_ARGUMENT"), change
    engine.send({"op": "dance"})
    assert next(answers)["event"] == "refused"
    engine.send({"op": "stats"})
    assert next(answers)["leased_pages"] == 0
    engine.send(good)
    assert next(answers)["event"] == "opened"
    engine.send(good)
    seen = [next(answers) for _ in range(3)]
    assert "DUPLICATE_ROOM" in [message.get("reason") for message in seen]
    engine.close()
    pair.wait(lambda: pair.ledger()[0] == (0, 0), "the pages to come back")


def test_noise_on_the_socket_ends_that_connection_only(pair: Pair) -> None:
    for noise in (b"no json\n", b"[1]\n", b"x" * (1 << 20)):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(10)
            raw.connect(str(pair.decode.options.listen))
            raw.sendall(noise)
            while raw.recv(4096):
                pass
    Router([pair.prefill.options.listen], [pair.decode.options.listen]).close()
