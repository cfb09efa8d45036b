"""pageferryctl against real services and agents: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pageferry as pf
import pytest
from cluster import BIN_DIR, Cluster, cluster, wait_until
from engines import Engine, engine_pair
from pageferry.bootstrap.v1 import bootstrap_pb2, bootstrap_pb2_grpc

PROGRAM = BIN_DIR / "pageferryctl"
WAIT = 60.0
OK, FAILED, USAGE, NOT_FOUND, UNREACHABLE = range(5)


def ctl(
    *arguments: str, stdin: int = subprocess.DEVNULL, **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PAGEFERRY_")}
    return subprocess.run(
        [PROGRAM, *arguments],
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=WAIT,
        env={**clean, **environment},
    )


def answer(*arguments: str) -> Any:
    """The document that the program prints."""
    ended = ctl("-o", "json", *arguments)
    assert (ended.returncode, ended.stderr) == (OK, ""), ended
    return json.loads(ended.stdout)


def failure(code: int, *arguments: str) -> dict[str, Any]:
    """The error that the program prints with -o json."""
    ended = ctl("-o", "json", *arguments)
    assert (ended.returncode, ended.stdout) == (code, ""), ended
    error: dict[str, Any] = json.loads(ended.stderr)
    assert error["exit_code"] == code
    return error


def table(*arguments: str) -> list[list[str]]:
    """The cells of what is printed for people: columns are two blanks or more apart."""
    ended = ctl(*arguments)
    assert (ended.returncode, ended.stderr) == (OK, ""), ended
    lines = ended.stdout.splitlines()
    assert max(map(len, lines)) <= 120
    assert "\x1b" not in ended.stdout
    return [re.split(r" {2,}", line.strip()) for line in lines]


@pytest.fixture(name="running")
def one_cluster() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


@pytest.fixture(name="pair")
def one_pair(running: Cluster) -> Iterator[tuple[Engine, Engine]]:
    with engine_pair(running) as pair:
        yield pair


def at(running: Cluster, name: str) -> list[str]:
    return ["--agent", running.target(name)]


def state_of(running: Cluster, name: str) -> str:
    with pf.Agent.connect(running.target(name)) as agent:
        return agent.info().state.name


def test_engines_and_ranks_name_what_is_missing(running: Cluster) -> None:
    target = ["--bootstrap", running.bootstrap_target]
    assert table(*target, "engines")[0] == ["No engines."]
    running.agent("first")
    with pf.Agent.connect(running.target("first")) as agent:
        shape = pf.ParallelShape(dp=2)
        Engine(agent, "split", pf.Role.PREFILL, pages=8, shape=shape).close()
        titles, row, *_ = table(*target, "engines")
        assert titles == ["ENGINE", "ROLE", "DPxCPxTPxPP", "READY", "LIVE", "MISSING"]
        assert row == ["split", "prefill", "2x1x1x1", "no", "1/2", "dp1 cp0 tp0 pp0"]

        document = answer(*target, "engines")
        assert document["warming_up"] in (True, False)
        assert int(document["version"]) > 0
        [engine] = document["engines"]
        assert engine["key"] == {"namespace": "default", "engine_id": "split"}
        assert (engine["role"], engine["ready"]) == ("ROLE_PREFILL", False)
        assert engine["missing"] == [{"dp": 1, "cp": 0, "tp": 0, "pp": 0}]

        head, titles, live, missing = table(*target, "ranks", "split")
        assert head[0].startswith("Engine split in default: prefill, dp2 cp1 tp1 pp1, 1/2 live")
        assert titles[:4] == ["COORDINATE", "AGENT", "EPOCH", "ENDPOINT"]
        assert live[:2] == ["dp0 cp0 tp0 pp0", running.agent_id("first")]
        assert int(live[2]) >= 1
        assert live[3].startswith("127.0.0.1:")
        assert live[5] == "local"
        assert missing == ["dp1 cp0 tp0 pp0", "missing"]

        [rank] = answer("ranks", "split", *target)["engine"]["ranks"]
        assert rank["agent"]["agent_id"] == running.agent_id("first")
        assert rank["ttl"].endswith("s")
        assert "local" in rank["transports"]

    # A service that has just started cannot tell "gone" from "not back yet": that is no NOT_FOUND.
    for code, reason in ((FAILED, "WARMING_UP"), (NOT_FOUND, "ENGINE_NOT_FOUND")):
        if reason == "ENGINE_NOT_FOUND":
            wait_until("end of the warm-up", lambda: not answer(*target, "engines")["warming_up"])
        error = failure(code, *target, "ranks", "nobody")
        assert error["reason"] == f"ERROR_REASON_{reason}"
        assert error["address"] == running.bootstrap_target


def test_all_pages_and_namespaces_of_engines_are_fetched(running: Cluster) -> None:
    count = 1100  # above the largest page
    with grpc.insecure_channel(running.bootstrap_target) as channel:
        stub = bootstrap_pb2_grpc.BootstrapStub(channel)
        calls = [
            stub.Register.future(
                bootstrap_pb2.RegisterRequest(
                    engine={"namespace": f"tenant-{number % 2}", "engine_id": f"e{number:04}"},
                    role="ROLE_DECODE",
                    shape={"dp": 1, "cp": 1, "tp": 1, "pp": 1},
                    profile={
                        "page_tokens": 16,
                        "data_type": "DATA_TYPE_FLOAT16",
                        "layout": "KV_LAYOUT_NHD",
                        "attention": "ATTENTION_KIND_MHA",
                        "total_kv_heads": 8,
                        "head_dim": 64,
                    },
                    coordinate={},
                    agent_id=f"agent-{number}",
                    incarnation={"start_time_unix_nanos": 1, "nonce": 1},
                    endpoint={"host": "127.0.0.1", "port": 7},
                    ttl={"seconds": 300},
                ),
                timeout=WAIT,
            )
            for number in range(count)
        ]
        for call in calls:
            call.result()
    target = ["--bootstrap", running.bootstrap_target]
    document = answer(*target, "--namespace", "*", "engines")
    assert len({engine["key"]["engine_id"] for engine in document["engines"]}) == count
    assert document["next_page_token"] == ""
    assert len(answer(*target, "engines", "--namespace", "tenant-1")["engines"]) == count // 2
    assert answer(*target, "engines")["engines"] == []
    titles, row, *_ = table(*target, "engines", "--namespace=*")
    assert (titles[0], row[:2]) == ("NAMESPACE", ["tenant-0", "e0000"])


def test_rooms_from_waiting_to_aborted(running: Cluster, pair: tuple[Engine, Engine]) -> None:
    both = [*at(running, "prefill"), *at(running, "decode")]
    assert table(*both, "rooms") == [["No rooms."]]
    receiving = pair[1].session.open_receive(7, "prefill", [3, 4, 9])
    wait_until("the grant at prefill", lambda: len(answer(*both, "rooms")["rooms"]) == 2)

    rooms = {room["role"]: room for room in answer(*both, "rooms")["rooms"]}
    mine = rooms["ROLE_DECODE"]
    assert mine["room"] == {"room_id": "7", "attempt": 1}
    assert mine["agent"]["agent_id"] == running.agent_id("decode")
    assert mine["agent_address"] == running.target("decode")
    assert (mine["pages_granted"], mine["pages_done"]) == ("3", "0")
    assert mine["peer_engine_id"] == "prefill"
    titles, *rows = table(*both, "rooms")
    assert titles[:5] == ["AGENT", "ROOM", "ATT", "ROLE", "STATE"]
    assert sorted(row[3] for row in rows) == ["decode", "prefill"]

    state = mine["state"].removeprefix("ROOM_STATE_").lower()
    assert len(answer(*at(running, "decode"), "rooms", "--state", state)["rooms"]) == 1
    assert answer(*both, "rooms", "--state", "success,failed")["rooms"] == []
    [only] = answer(*both, "rooms", "--role", "prefill")["rooms"]
    assert only["role"] == "ROLE_PREFILL"

    details = {row[0]: row[1] for row in table(*at(running, "decode"), "rooms", "7")}
    assert details["room"] == "7 attempt 1"
    assert details["pages"] == "0 in place, 0 offered, 3 granted"
    assert details["drained"] == "no"
    assert len(answer(*both, "rooms", "7", "--attempt", "1")["rooms"]) == 2
    error = failure(NOT_FOUND, *at(running, "decode"), "rooms", "7", "--attempt", "2")
    assert error["reason"] == "ERROR_REASON_ROOM_NOT_FOUND"

    abort = [*at(running, "decode"), "abort", "7", "--reason", "stuck, ticket 12"]
    [aborted] = answer(*abort)["rooms"]
    assert aborted["state"] == "ROOM_STATE_FAILED"
    assert aborted["error"]["reason"] == "ERROR_REASON_OPERATOR_ABORTED"
    with pytest.raises(pf.RoomFailed) as failed:
        receiving.wait(WAIT)
    assert failed.value.reason == "OPERATOR_ABORTED"
    assert "stuck, ticket 12" in str(failed.value)
    receiving.wait_drained(WAIT)
    assert failure(NOT_FOUND, *abort)["code_name"] == "NOT_FOUND"
    told = ctl(*abort)
    assert told.returncode == NOT_FOUND
    assert "NOT_FOUND ROOM_NOT_FOUND: " in told.stderr
    assert running.target("decode") in told.stderr
    row = next(row for row in table(*at(running, "decode"), "rooms") if row[1] == "7")
    assert (row[4], row[-1]) == ("failed", "OPERATOR_ABORTED")


def test_all_pages_of_rooms_are_fetched(running: Cluster, pair: tuple[Engine, Engine]) -> None:
    count = 1100
    for room in range(count):
        pair[0].session.open_send(room)
    here = at(running, "prefill")
    wait_until("all rooms", lambda: len(answer(*here, "rooms")["rooms"]) == count)
    ids = [int(room["room"]["room_id"]) for room in answer(*here, "rooms")["rooms"]]
    assert ids == list(range(count))


def test_drain_asks_first_and_tells_what_it_did(
    running: Cluster, pair: tuple[Engine, Engine]
) -> None:
    here = at(running, "decode")
    receiving = pair[1].session.open_receive(1, "prefill", [1])
    wait_until("the room", lambda: answer(*here, "rooms")["rooms"])
    unasked = failure(USAGE, *here, "drain")
    assert "--yes" in unasked["message"]

    def at_a_terminal(typed: bytes) -> subprocess.CompletedProcess[str]:
        master, slave = pty.openpty()
        try:
            os.write(master, typed)
            return ctl(*here, "drain", "--timeout", "0s", stdin=slave)
        finally:
            os.close(slave)
            os.close(master)

    refused = at_a_terminal(b"n\n")
    assert (refused.returncode, refused.stdout) == (FAILED, "")
    assert ", 1 room):" in refused.stderr
    assert "nothing was done" in refused.stderr
    assert state_of(running, "decode") == "READY"

    drained = at_a_terminal(b"y\n")
    assert drained.returncode == OK, drained
    assert "0 rooms ended, 1 aborted" in drained.stdout
    with pytest.raises(pf.RoomFailed):
        receiving.wait(WAIT)
    assert state_of(running, "decode") == "DRAINING"


def test_drain_without_waiting_goes_on_alone(running: Cluster, pair: tuple[Engine, Engine]) -> None:
    here = at(running, "prefill")
    sending = pair[0].session.open_send(5)
    wait_until("the room", lambda: answer(*here, "rooms")["rooms"])
    begun = answer(*here, "drain", "--yes", "--no-wait", "--timeout", "1s", "--deregister")
    assert begun["waited"] is False
    assert begun["agent"]["agent_id"] == running.agent_id("prefill")
    assert state_of(running, "prefill") == "DRAINING"
    with pytest.raises(pf.RoomFailed):
        sending.wait(WAIT)
    target = ["--bootstrap", running.bootstrap_target]

    def gone() -> bool:
        engines = answer(*target, "engines")["engines"]
        return all(
            engine["key"]["engine_id"] != "prefill" or not engine["ready"] for engine in engines
        )

    wait_until("the cell to be given up", gone)
    again = answer(*here, "drain", "--yes")
    assert (again["waited"], again["finished_count"], again["aborted_count"]) == (True, 0, 0)


def test_one_dead_agent_hides_no_other(running: Cluster, pair: tuple[Engine, Engine]) -> None:
    pair[0].session.open_send(5)
    here = at(running, "prefill")
    wait_until("the room", lambda: answer(*here, "rooms")["rooms"])
    both = ["--agent", "unix:/nowhere/agent.sock", *here]
    for command in (["rooms"], ["rooms", "5"]):
        ended = ctl("-o", "json", *both, *command)
        assert ended.returncode == UNREACHABLE
        assert [room["room"]["room_id"] for room in json.loads(ended.stdout)["rooms"]] == ["5"]
        error = json.loads(ended.stderr)
        assert error["address"] == "unix:/nowhere/agent.sock"
        assert (error["code_name"], error["code"]) == ("UNAVAILABLE", 14)


def test_replicas_are_tried_in_turn_and_the_environment_counts(running: Cluster) -> None:
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # not listening: refused
        down = f"127.0.0.1:{dead.getsockname()[1]}"
        ended = ctl("engines", PAGEFERRY_BOOTSTRAP=f"{down},{running.bootstrap_target}")
        assert (ended.returncode, ended.stderr) == (OK, "")
        ended = ctl("engines", "--bootstrap", down, PAGEFERRY_BOOTSTRAP=running.bootstrap_target)
        assert ended.returncode == UNREACHABLE
        assert down in ended.stderr
    running.agent("idle")
    ended = ctl("rooms", PAGEFERRY_AGENT=f"{running.folder}/idle.sock")
    assert (ended.returncode, ended.stdout) == (OK, "No rooms.\n")


def test_who_does_not_answer_is_given_up(tmp_path: pathlib.Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        path = str(tmp_path / "silent.sock")
        silent.bind(path)
        silent.listen()
        held: list[socket.socket] = []
        accept = threading.Thread(target=lambda: held.append(silent.accept()[0]))
        accept.start()
        for command in (["rooms"], ["abort", "1"], ["drain", "--yes"]):
            failure(UNREACHABLE, "--agent", f"unix:{path}", "--timeout", "300ms", *command)
        accept.join(WAIT)
        for connection in held:
            connection.close()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "subcommand"),
        (["frob"], "subcommand"),
        (["engines"], "--bootstrap"),
        (["engines", "--bootstrap", "nowhere"], "nowhere"),
        (["ranks", "--bootstrap", "h:1"], "ENGINE"),
        (["rooms"], "--agent"),
        (["rooms", "--agent", "unix:"], "unix:"),
        (["rooms", "-1", "--agent", "/a"], ""),
        (["rooms", "9223372036854775808", "--agent", "/a"], "9223372036854775807"),
        (["rooms", "--state", "tired", "--agent", "/a"], "waiting_for_input"),
        (["rooms", "--agent", "/a", "--attempt", "1"], "ROOM_ID"),
        (["rooms", "7", "--agent", "/a", "--state", "failed"], "ROOM_ID"),
        (["abort", "--agent", "/a"], "ROOM_ID"),
        (["abort", "7", "--agent", "/a", "--reason", "x" * 257], "256"),
        (["drain", "--agent", "/a,/b", "--yes"], "one --agent"),
        (["drain", "--agent", "/a", "--timeout", "2h"], "1h"),
        (["rooms", "--agent", "/a", "--timeout", "0"], "1ms"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_asked(arguments: list[str], word: str) -> None:
    ended = ctl(*arguments)
    assert (ended.returncode, ended.stdout) == (USAGE, ""), ended
    assert word in ended.stderr
    error = failure(USAGE, *arguments)
    assert (error["code_name"], error["reason"]) == (
        "INVALID_ARGUMENT",
        "ERROR_REASON_UNSPECIFIED",
    )


def test_help_names_every_command_and_version_the_libraries() -> None:
    told = ctl("--help")
    assert (told.returncode, told.stderr) == (OK, "")
    for command in ("engines", "ranks", "rooms", "abort", "drain"):
        assert re.search(rf"^  {command} ", told.stdout, re.MULTILINE), command
        one = ctl(command, "--help")
        assert (one.returncode, f"pageferryctl {command}" in one.stdout) == (OK, True)
    assert ctl("--version").stdout.startswith("pageferryctl ")
