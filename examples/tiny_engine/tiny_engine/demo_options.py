"""The demo's command line."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tiny_engine.demo_prompts import PROMPTS, Prompt, PromptsError, read_prompts
from tiny_engine.router import FindBy, Side

TRANSPORTS = ("local", "tcp")
_REPOSITORY = Path(__file__).resolve().parents[3]
_DESCRIPTION = """\
Runs a real language model in two processes: one computes the prompts (prefill), the other writes
the answers (decode), and Pageferry moves the KV cache between them. Then it proves that the answers
and the moved pages are, byte for byte, what a single process computes without Pageferry.
"""
_EPILOG = """\
examples:
  ./dev demo
  ./dev demo --transport tcp
  ./dev demo --prefill dp2 --decode dp2 --find-by directory
  ./dev demo --mtls
  ./dev demo --prompts questions.txt --max-tokens 100 --json result.json
  ./dev demo --kill-prefill-after 2 --kill engine
  ./dev demo --keep

exit status:
  0  everything went through and is equal
  1  a failure or a difference; logs are kept, and their folder is named
  2  a wrong option
  3  --kill-prefill-after: the rooms that were left ended with clean errors, as they should
"""


def _replicas(text: str) -> int:
    match = re.fullmatch(r"dp([1-4])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is none of dp1, dp2, dp3, dp4")
    return int(match[1])


@dataclass(frozen=True)
class DemoOptions:
    """The options, checked. `kill_after` 0 kills nothing."""

    transport: str
    replicas: dict[Side, int]
    find_by: FindBy
    mtls: bool
    ctl: bool
    prompts: tuple[Prompt, ...]
    keep: bool
    kill_after: int
    kill: Literal["agent", "engine"]
    json: Path | None
    max_tokens: int
    seed: int
    bin_dir: Path
    timeout: float
    quiet: bool


def parse_options(arguments: list[str] | None = None) -> DemoOptions:
    """Reads the command line; ends the process with status 2 where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="./dev demo",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--transport", default="local", metavar="WAY", help="how pages go: local (default), tcp")
    for side, what in (("prefill", "computes prompts"), ("decode", "writes answers")):
        text = f"replicas of the engine that {what}, each with its agent: dp1 (default) to dp4"
        add(f"--{side}", type=_replicas, default=1, metavar="dpN", help=text)
    add(
        "--find-by",
        choices=("modulo", "hint", "directory"),
        default="modulo",
        help="how decode finds the prefill replica that has a room (default modulo)",
    )
    add(
        "--mtls",
        action="store_true",
        help="TCP instead of unix sockets, with throw-away certificates that all must show",
    )
    add("--ctl", action="store_true", help="show what pageferryctl tells while it runs")
    add("--prompts", type=Path, metavar="FILE", help="one prompt a line, or a JSON list")
    add("--max-tokens", type=int, default=40, metavar="N", help="longest answer (default 40)")
    add("--seed", type=int, default=0, metavar="N", help="for prompts with a temperature")
    add("--json", type=Path, metavar="FILE", help="write the result there as JSON")
    add("--keep", action="store_true", help="leave everything running until Ctrl-C")
    add(
        "--kill-prefill-after",
        type=int,
        default=0,
        metavar="N",
        help="kill -9 the prefill side when N rooms were handed over, and show the errors",
    )
    add("--kill", choices=("agent", "engine"), default="agent", help="what of it (default agent)")
    add(
        "--bin-dir",
        type=Path,
        metavar="DIR",
        help="folder of the binaries (default $PAGEFERRY_BIN_DIR, $PAGEFERRY_BIN, build/dev/bin)",
    )
    add("--timeout", type=float, default=60, metavar="S", help="seconds without news (default 60)")
    add("--quiet", action="store_true", help="print the result only")
    given = parser.parse_args(arguments)
    if given.transport not in TRANSPORTS:
        has = ", ".join(TRANSPORTS)
        parser.error(f"--transport {given.transport}: this release has {has} only")
    try:
        prompts = PROMPTS if given.prompts is None else read_prompts(given.prompts)
    except PromptsError as error:
        parser.error(f"--prompts: {error}")
    if given.max_tokens < 1 or given.timeout <= 0:
        parser.error("--max-tokens and --timeout must be positive")
    if given.json is not None and not given.json.absolute().parent.is_dir():
        parser.error(f"--json: {given.json.absolute().parent} is no folder")
    if not 0 <= given.seed < 1 << 64:
        parser.error("--seed must be from 0 to 2^64 - 1")
    if not 0 <= given.kill_prefill_after < len(prompts):
        parser.error(f"--kill-prefill-after must be below the number of prompts, {len(prompts)}")
    if given.keep and given.kill_prefill_after:
        parser.error("--keep and --kill-prefill-after exclude each other")
    named = os.environ.get("PAGEFERRY_BIN_DIR") or os.environ.get("PAGEFERRY_BIN")
    folder = given.bin_dir or named or _REPOSITORY / "build/dev/bin"
    return DemoOptions(
        transport=given.transport,
        replicas={"prefill": given.prefill, "decode": given.decode},
        find_by=given.find_by,
        mtls=given.mtls,
        ctl=given.ctl,
        prompts=prompts,
        keep=given.keep,
        kill_after=given.kill_prefill_after,
        kill=given.kill,
        json=given.json,
        max_tokens=given.max_tokens,
        seed=given.seed,
        bin_dir=Path(folder),
        timeout=given.timeout,
        quiet=given.quiet,
    )
