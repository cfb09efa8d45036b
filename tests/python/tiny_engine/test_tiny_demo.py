"""The demo's parts by themselves: pages kept, prompts read, signals, and a proof that can fail."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_engine import demo_guard
from tiny_engine.demo_options import parse_options
from tiny_engine.demo_processes import DemoError, Interrupted, Processes, Signals
from tiny_engine.demo_prompts import PROMPTS, Prompt, PromptsError, read_prompts
from tiny_engine.demo_proof import prove
from tiny_engine.demo_report import Report
from tiny_engine.demo_rooms import Failure, Room, plan_rooms
from tiny_engine.demo_table import table
from tiny_engine.demo_terminal import Terminal
from tiny_engine.kv_cache import KvLayout, PagedKvCache, page_digests
from tiny_engine.model import Model
from tiny_engine.page_store import PageStore
from tiny_engine.pages import OutOfPagesError
from tiny_engine.reference import ReferencePrompt, run_reference
from tiny_engine.tokenizer import ChatTokenizer


def test_page_store_keeps_and_gives_up() -> None:
    store = PageStore(8, page_tokens=4)
    prompt = list(range(10))
    first = store.lease(prompt, 3)
    assert (first.cached, store.leased_count) == (0, 3)
    store.keep(first, prompt)  # two whole pages
    second = store.lease([*prompt, 77], 4)
    assert second.cached == 2 and second.pages[:2] == first.pages[:2]
    assert store.lease(prompt, 3, limit_tokens=5).cached == 1
    with pytest.raises(OutOfPagesError):
        store.lease([50], 6)
    kept = list(first.pages[:2])
    store.give_back(first)
    store.give_back(second)
    assert store.kept_count == 1  # the third lease still uses the other
    # The end of the prefix goes first, and never what somebody uses.
    wide = store.lease([50], store.free_count + 1)
    assert kept[1] in wide.pages and kept[0] not in wide.pages
    with pytest.raises(OutOfPagesError):
        store.lease([51], 1)


def test_page_store_counts_back_to_zero() -> None:
    store = PageStore(6, page_tokens=4)
    leases = [store.lease(range(9), 3), store.lease(range(9), 3)]
    for lease in leases:
        store.keep(lease, list(range(9)))  # the second one's pages are no news
    for lease in leases:
        store.give_back(lease)
    assert (store.leased_count, store.kept_count, store.free_count) == (0, 2, 4)
    assert len(store.lease([9], 6).pages) == 6


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text("One?\n\n  Two?\n", encoding="utf-8")
    assert [prompt.text for prompt in read_prompts(path)] == ["One?", "  Two?"]
    path.write_text('["A", {"prompt": "B", "temperature": 1, "max_tokens": 3}]', encoding="utf-8")
    assert read_prompts(path) == (Prompt("A"), Prompt("B", 1.0, 3))
    for wrong in (
        "",
        "[]",
        "[1]",
        "[",
        '[{"text": "A"}]',
        '[{"prompt": "A", "temperature": -1}]',
        '[{"prompt": "A", "max_tokens": 0}]',
        '[{"prompt": "A", "colour": "red"}]',
    ):
        path.write_text(wrong, encoding="utf-8")
        with pytest.raises(PromptsError):
            read_prompts(path)


def test_help_has_an_example_and_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_options(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert "./dev demo --prompts" in text and "\n  3  " in text


def test_the_own_prompts_are_what_the_demo_promises(tokenizer: ChatTokenizer) -> None:
    rooms = plan_rooms(PROMPTS, tokenizer, max_tokens=40, seed=1)
    assert len(rooms) == 8
    assert max(len(room.tokens) for room in rooms) > 4 * 64
    assert [(room.number, room.follows) for room in rooms if room.follows] == [(5, 2)]
    assert {room.order for room in rooms} == {"grant_first", "send_first", "together"}
    assert len({room.sampler.seed for room in rooms}) == 8


@pytest.fixture
def signals() -> Signals:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield Signals()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_come_once_and_only_where_exposed(signals: Signals) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Interrupted) as found, signals.exposed():
        pytest.fail("it should have come at the door")
    assert found.value.number == signal.SIGTERM
    os.kill(os.getpid(), signal.SIGINT)
    with signals.exposed():
        os.kill(os.getpid(), signal.SIGINT)


def test_signals_wait_for_the_end_of_a_step(signals: Signals) -> None:
    steps = []
    with pytest.raises(Interrupted), signals.exposed():
        with signals.shielded():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("whole")
        steps.append("not reached")
    assert steps == ["whole"]


def test_processes_tell_their_last_words(signals: Signals, tmp_path: Path) -> None:
    processes = Processes(tmp_path, "test", signals)
    with pytest.raises(DemoError, match="cannot start nobody"):
        processes.start("nobody", ["/nowhere/program"], {})
    processes.start("talker", ["/bin/sh", "-c", "echo $WORD; exit 7"], {"WORD": "farewell"})
    with pytest.raises(DemoError, match=r"status 7\)(.|\n)*farewell"):
        processes.wait_for("a miracle", lambda: None, 20, of="talker")
    assert processes.stop("talker") is None
    processes.start("sleeper", ["/bin/sleep", "60"], {})
    with pytest.raises(DemoError, match="waited 0 s for a miracle"):
        processes.wait_for("a miracle", lambda: None, 0.05, of="sleeper")
    assert processes.stop("sleeper") == "the sleeper ended with status -15"
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    processes.start("stubborn", ["/bin/sh", "-c", stubborn], {})
    log = tmp_path / "stubborn.log"
    processes.wait_for("its word", lambda: log.read_text() or None, 20, of="stubborn")
    assert "was killed" in str(processes.stop("stubborn", seconds=0.1))
    processes.close()
    assert tmp_path.exists()


def test_the_guard_ends_what_a_killed_demo_left(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    sleeper = subprocess.Popen(["/bin/sleep", "60"])
    shared = Path(f"/dev/shm/pageferry.guard-test-{os.getpid()}-x.kv")
    shared.touch()
    command = [sys.executable, demo_guard.__file__, str(folder), f"guard-test-{os.getpid()}"]
    subprocess.run(command, input=f"{sleeper.pid}\n999999999\n", text=True, timeout=20, check=True)
    assert sleeper.wait(1) == -signal.SIGTERM
    assert not folder.exists() and not shared.exists()


@pytest.fixture(scope="module")
def answered(model: Model, tokenizer: ChatTokenizer) -> Room:
    """A room as a right engine would leave it."""
    room = plan_rooms([Prompt("Say hello.")], tokenizer, max_tokens=3, seed=0)[0]
    config = model.config
    cache = PagedKvCache.allocate(KvLayout(config.layers, 8, config.kv_heads, config.head_dim))
    asked = ReferencePrompt(1, room.tokens, 3)
    result = run_reference(model, cache, [asked], tokenizer.stop_tokens)[1]
    room.id, room.state, room.pages, room.transport = 1, "done", 3, "local"
    room.bytes, room.seconds, room.seen_order = 3 * 368_640 + 256, 0.001, "grant_first"
    room.output, room.digests = list(result.tokens), page_digests(result.kv_pages)
    return room


def verdict(
    model: Model, tokenizer: ChatTokenizer, room: Room, folder: Path, killed: bool = False
) -> tuple[int, str]:
    """Proves one room; returns the exit status and what was said."""
    out = io.StringIO()
    folder.joinpath("p").write_text("Say hello.", encoding="utf-8")
    options = parse_options(["--prompts", str(folder / "p"), "--json", str(folder / "out.json")])
    report = Report(options, Terminal(out=out))
    proof = prove(model, [room], tokenizer.stop_tokens, lambda _: None)
    status = report.verdict([room], proof, [], killed)
    report.end([room], status, "", [])
    assert json.loads((folder / "out.json").read_text())["ok"] is (status == 0)
    return status, out.getvalue()


def test_the_proof_fails_when_it_must(
    model: Model, tokenizer: ChatTokenizer, answered: Room, tmp_path: Path
) -> None:
    status, said = verdict(model, tokenizer, answered, tmp_path)
    assert status == 0 and "OK: 1 room, 3 pages" in said, said
    assert table([answered])[2].split()[:3] == ["1", "1", str(len(answered.tokens))]

    right = list(answered.digests)
    answered.digests[1] = "0" * 64
    status, said = verdict(model, tokenizer, answered, tmp_path)
    assert status == 1 and "pages [1] of 3 differ" in said
    assert (answered.tokens_equal, answered.pages_equal) == (True, False)
    answered.digests = right[:2]
    assert verdict(model, tokenizer, answered, tmp_path)[0] == 1
    answered.digests = right

    answered.output[1] += 1
    status, said = verdict(model, tokenizer, answered, tmp_path)
    assert status == 1 and "answers differ at token 1" in said
    answered.output[1] -= 1

    answered.transport = "grpc"
    status, said = verdict(model, tokenizer, answered, tmp_path)
    assert status == 1 and "not by local" in said
    answered.transport = "local"

    answered.seen_order = "send_first"
    status, said = verdict(model, tokenizer, answered, tmp_path)
    assert status == 1 and "no room saw grant first" in said
    answered.seen_order = "grant_first"


def test_a_failed_room_fails_the_demo(
    model: Model, tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    room = plan_rooms([Prompt("Say hello.")], tokenizer, max_tokens=3, seed=0)[0]
    room.id, room.state = 1, "failed"
    room.failures["decode"] = Failure("UNAVAILABLE", "PEER_LOST", "it has gone", 1.0)
    assert verdict(model, tokenizer, room, tmp_path)[0] == 1
    assert verdict(model, tokenizer, room, tmp_path, killed=True)[0] == 3
    room.failures["decode"] = Failure("UNKNOWN", "UNSPECIFIED", "", 1.0)
    status, said = verdict(model, tokenizer, room, tmp_path, killed=True)
    assert status == 1 and "without a reason" in said
