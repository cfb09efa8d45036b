"""The demo as its user runs it: real programs, the real model, and nothing left behind.

The programs are looked for in $PAGEFERRY_BIN_DIR, then $PAGEFERRY_BIN, then build/dev/bin. Where CI
is set they must be there, and the model too; elsewhere the tests are skipped without them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(os.environ.get("PAGEFERRY_ROOT", Path(__file__).resolve().parents[2]))
EXAMPLE = ROOT / "examples" / "tiny_engine"
BIN_DIR = Path(
    os.environ.get("PAGEFERRY_BIN_DIR")
    or os.environ.get("PAGEFERRY_BIN")
    or ROOT / "build" / "dev" / "bin"
)
MARK = "PAGEFERRY_DEMO_TEST"
STORY = (
    "The old lighthouse stood on a cliff above the sea, and every evening its keeper climbed the "
    "stairs to light the lamp. Her name was Mara. One night in November the storm was so strong "
    "that the mail boat did not come, and she saw a light far out, where no light should be. She "
    "took the long rope and went down to the landing place. After an hour a small boat came out "
    "of the dark with an old captain, a young doctor and a girl who held a wet cat in her arms. "
    "On the third try the captain caught the rope. "
)
PROMPTS = [
    "What is the capital of France?",
    f"{STORY}\n\nWho came?",
    {"prompt": "Name a colour.", "temperature": 0.8},
    f"{STORY}\n\nWhat was lost?",
]


def unusable(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    for name in ("pageferry-bootstrap", "pageferry-agent"):
        if not os.access(BIN_DIR / name, os.X_OK):
            unusable(f"{BIN_DIR / name} is not built")
    fetch = [sys.executable, "-m", "tiny_engine.model_file", "--fetch"]
    result = subprocess.run(fetch, cwd=EXAMPLE, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        unusable(f"no model: {result.stderr}")


class Run:
    """One run of the demo, in folders and with a mark of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.output = ""
        command = [sys.executable, str(EXAMPLE / "demo.py"), "--bin-dir", str(BIN_DIR)]
        environment = os.environ | {MARK: self.mark, "TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            [*command, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read_until(self, text: str, seconds: float = 120) -> None:
        """Reads the output up to a line that has `text`."""
        deadline = time.monotonic() + seconds
        assert self.process.stdout is not None
        while time.monotonic() < deadline:
            line = self.process.stdout.readline()
            self.output += line
            if text in line:
                return
            assert line, f"the demo ended before {text!r}:\n{self.output}"
        pytest.fail(f"no {text!r} within {seconds} s:\n{self.output}")

    def end(self, seconds: float = 120) -> int:
        """Waits for the end; returns the exit status."""
        try:
            self.output += self.process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            pytest.fail(f"the demo did not end within {seconds} s:\n{self.output}")
        return self.process.returncode

    def children(self) -> list[int]:
        """Processes that this run started and that still live."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if int(entry.name) == self.process.pid or f"{MARK}={self.mark}".encode() not in (
                    entry / "environ"
                ).read_bytes().split(b"\0"):
                    continue
                if (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(entry.name))
        return found

    def left_behind(self) -> list[str]:
        """What a run must not leave: processes, files and sockets, shared memory."""
        shared = [
            str(path) for path in Path("/dev/shm").glob(f"pageferry.demo-{self.process.pid}-*")
        ]
        return [*map(str, self.children()), *map(str, self.folder.iterdir()), *shared]

    def stop(self) -> None:
        """Ends what a failed test left."""
        self.process.kill()
        for child in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.wait()
        for path in Path("/dev/shm").glob(f"pageferry.demo-{self.process.pid}-*"):
            path.unlink()


Start = Callable[..., Run]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(PROMPTS), encoding="utf-8")
    return str(path)


@pytest.fixture
def start(prompts: str) -> Iterator[Start]:
    """Starts demos with few prompts and short answers; their sockets need a short path."""
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="pf-") as folder:

        def begin(*arguments: str) -> Run:
            few = ["--prompts", prompts, "--max-tokens", "5"]
            runs.append(Run(Path(folder), *few, *arguments))
            return runs[-1]

        yield begin
        for run in runs:
            run.stop()


def wait_until(true: Callable[[], bool], what: str, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("transport", "more"),
    [
        ("local", []),
        ("tcp", ["--mtls"]),
        ("tcp", ["--prefill", "dp2", "--decode", "dp2", "--find-by", "directory"]),
        ("local", ["--prefill", "dp2", "--find-by", "hint", "--ctl"]),
    ],
    ids=["plain", "tcp with mtls", "replicas by directory", "replicas by hint"],
)
def test_everything_is_equal(start: Start, tmp_path: Path, transport: str, more: list[str]) -> None:
    result_file = tmp_path / "result.json"
    run = start("--json", str(result_file), "--transport", transport, *more)
    assert run.end() == 0, run.output
    assert run.left_behind() == []
    assert "OK: 4 rooms" in run.output
    if "--ctl" in more:
        assert re.search(r"^prefill-0 +prefill +2x1x1x1 +yes", run.output, re.MULTILINE)
        assert re.search(r"^AGENT +ROOM +ATT", run.output, re.MULTILINE)
    result = json.loads(result_file.read_text(encoding="utf-8"))
    assert (result["ok"], result["transport"]) == (True, transport)
    rooms = result["rooms"]
    assert len({room["room"] for room in rooms}) == len(rooms) == 4
    assert all(room["tokens_equal"] is True and room["pages_equal"] is True for room in rooms)
    assert all(0 <= room["room"] < 1 << 63 and room["seconds"] > 0 for room in rooms)
    assert rooms[1]["prompt_tokens"] > 2 * 64
    for room in rooms:
        whole = -(-room["prompt_tokens"] // 16)
        assert room["pages"] + room["cached_pages"] == whole
        # Each page, and the aux row.
        assert room["bytes"] == room["pages"] * 368_640 + 256
    if "--decode" not in more:  # one decode engine, which keeps what it has
        assert rooms[3]["cached_pages"] >= 8
    assert {"grant_first", "send_first"} <= {room["order"] for room in rooms}


@pytest.mark.parametrize("what", ["agent", "engine"])
def test_a_killed_prefill_side_shows_reasons(start: Start, tmp_path: Path, what: str) -> None:
    result_file = tmp_path / "result.json"
    arguments = ["--kill-prefill-after", "1", "--kill", what, "--max-tokens", "10"]
    run = start(*arguments, "--json", str(result_file))
    assert run.end() == 3, run.output
    assert run.left_behind() == []
    assert f"kill -9 of the prefill {what}" in run.output
    result = json.loads(result_file.read_text(encoding="utf-8"))
    assert result["ok"] is False
    failed = [room for room in result["rooms"] if "failures" in room]
    finished = [room for room in result["rooms"] if "failures" not in room]
    assert len(failed) >= 2 and len(finished) >= 1
    assert all(room["tokens_equal"] and room["pages_equal"] for room in finished)
    for room in failed:
        for why in room["failures"].values():
            assert why["code"] != "OK" and why["message"]
        assert str(room["room"]) in run.output
    # The ones that were on their way when it died were told by their own agent.
    reasons = {
        room["failures"]["decode"]["reason"] for room in failed if "decode" in room["failures"]
    }
    assert reasons & {"PEER_LOST", "ENGINE_LOST", "PEER_ENGINE_FAILED", "PEER_ABORTED"}, run.output


@pytest.mark.parametrize(
    ("number", "when", "max_tokens"),
    [
        (signal.SIGINT, "Pageferry demo", 5),
        (signal.SIGINT, "received pages", 60),
        (signal.SIGTERM, "Computing", 5),
    ],
)
def test_a_signal_leaves_nothing(
    start: Start, number: signal.Signals, when: str, max_tokens: int
) -> None:
    run = start("--max-tokens", str(max_tokens))
    run.read_until(when)
    os.kill(run.process.pid, number)
    assert run.end(30) == 128 + number, run.output
    assert run.left_behind() == []
    assert "Traceback" not in run.output


def test_a_killed_demo_takes_its_processes_along(start: Start) -> None:
    run = start("--max-tokens", "60")
    run.read_until("received pages")
    assert len(run.children()) == 6  # the guard too
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not run.left_behind(), "the guard to tidy up")


def test_a_process_that_dies_is_named(start: Start) -> None:
    run = start("--max-tokens", "60")
    run.read_until("received pages")
    victim = next(
        child
        for child in run.children()
        if b"tiny_engine.decode_engine" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    os.kill(victim, signal.SIGKILL)
    assert run.end() == 1
    assert "the decode engine has ended (signal 9). Its log ends:" in run.output
    assert "decode-0 serves" in run.output
    kept = re.search(r"The logs are in (\S+)", run.output)
    assert kept is not None and (Path(kept[1]) / "decode-engine.log").exists()
    assert run.children() == []


def test_a_closed_output_ends_it(start: Start) -> None:
    run = start("--max-tokens", "60")
    run.read_until("granted pages")
    assert run.process.stdout is not None
    run.process.stdout.close()
    assert run.process.wait(30) == 128 + signal.SIGPIPE
    assert run.left_behind() == []


def test_keep_leaves_it_running(start: Start) -> None:
    run = start("--keep")
    run.read_until("Everything is running")
    run.read_until("tiny_engine.router")
    ask = shlex.split(run.output.splitlines()[-1])
    answer = subprocess.run(
        [*ask[:-1], "--max-tokens", "8", "What is the capital of France?"],
        cwd=EXAMPLE,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "Paris" in answer.stdout
    metrics = re.findall(r"http://\S+/metrics", run.output)
    assert len(metrics) == 3
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for address in metrics:
        with direct.open(address, timeout=10) as response:
            assert b"pageferry_" in response.read()
    os.kill(run.process.pid, signal.SIGINT)
    assert run.end(30) == 0, run.output
    assert run.left_behind() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--transport", "rdma"], "this release has local, tcp only"),
        (["--decode", "dp9"], "none of dp1"),
        (["--kill-prefill-after", "4"], "below the number of prompts"),
        (["--max-tokens", "0"], "must be positive"),
        (["--prompts", "/nowhere"], "cannot read /nowhere"),
        (["--json", "/nowhere/x"], "/nowhere is no folder"),
    ],
)
def test_wrong_options_are_refused(start: Start, arguments: list[str], said: str) -> None:
    run = start(*arguments)
    assert run.end() == 2
    assert said in run.output
    assert run.left_behind() == []


def test_missing_programs_are_named(start: Start, tmp_path: Path) -> None:
    run = start("--bin-dir", str(tmp_path))
    assert run.end() == 1
    assert f"no pageferry-bootstrap in {tmp_path}; run ./dev build" in run.output
    assert run.left_behind() == []
