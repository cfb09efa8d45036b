"""The demo from beginning to end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tiny_engine.demo_cluster import SIDES, Cluster
from tiny_engine.demo_options import DemoOptions, parse_options
from tiny_engine.demo_processes import DemoError, Interrupted, Signals
from tiny_engine.demo_proof import Proof, prove
from tiny_engine.demo_report import Report
from tiny_engine.demo_rooms import Room, Traffic, plan_rooms
from tiny_engine.demo_terminal import Terminal
from tiny_engine.model import Model
from tiny_engine.model_file import ModelUnavailableError
from tiny_engine.router import Router, Side
from tiny_engine.tokenizer import ChatTokenizer, load_tokenizer
from tiny_engine.weights import Weights, load_weights

FAILED, KILL_SHOWN = 1, 3
_PAGES_AT_LEAST = 128


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo; returns its exit status."""
    options = parse_options(arguments)
    signals = Signals()
    return Demo(options, Terminal(options.quiet), signals).run()


class Demo:
    """One run. For the main thread."""

    def __init__(self, options: DemoOptions, terminal: Terminal, signals: Signals) -> None:
        self._options = options
        self._terminal = terminal
        self._signals = signals
        self._report = Report(options, terminal)
        self._rooms: list[Room] = []
        self._killed_at = 0.0
        self._removed = ""
        self._ctl_shown = False

    def run(self) -> int:
        """Returns the exit status; whatever it is, nothing is left behind but logs of a failure."""
        folder = Path(tempfile.mkdtemp(prefix="pageferry-demo-"))
        cluster: Cluster | None = None
        error = ""
        try:
            cluster = Cluster(folder, self._options, self._signals)
            with self._signals.exposed():
                status = self._run(cluster)
        except Interrupted as interrupted:
            status = 128 + interrupted.number
            error = str(interrupted)
        except (DemoError, ModelUnavailableError) as failure:
            status, error = FAILED, str(failure)
        except BrokenPipeError:
            status, error = 128 + signal.SIGPIPE, "nobody reads the output any more"
        finally:
            # First what must not stay, then what may fail where the output is closed.
            trouble = cluster.stop() if cluster is not None else []
            trouble += self._leftovers(cluster)
        if trouble and status in (0, KILL_SHOWN):
            status, error = FAILED, "not everything ended well"
        keeps_logs = status == FAILED and any(folder.iterdir())
        if not keeps_logs:
            shutil.rmtree(folder, ignore_errors=True)
        try:
            self._terminal.end()
            self._report.end(self._rooms, status, error, trouble, self._removed)
            if keeps_logs:
                self._terminal.result(f"The logs are in {folder}")
        except BrokenPipeError:
            # What Python would print about it at its end has no reader either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status

    def _leftovers(self, cluster: Cluster | None) -> list[str]:
        """Shared memory that is still there is trouble, but for that of an agent that we killed."""
        left = cluster.take_leftovers() if cluster is not None else []
        names = ", ".join(path.name for path in left)
        if left and self._killed_at and self._options.kill == "agent":
            self._removed = names
            return []
        return [f"shared memory was left behind, and is removed now: {names}"] if left else []

    def _run(self, cluster: Cluster) -> int:
        self._report.title()
        weights, tokenizer = load_weights(), load_tokenizer()
        options = self._options
        self._rooms = plan_rooms(options.prompts, tokenizer, options.max_tokens, options.seed)
        pages = self._pages_needed(weights)
        self._terminal.status("starting bootstrap service, agents and engines")
        began = time.monotonic()
        router = cluster.start(pages)
        self._report.services(cluster.addresses, time.monotonic() - began)
        if options.ctl:
            for command in (["engines"], ["ranks", "prefill-0"]):
                self._terminal.say(cluster.ctl(*command))
        self._serve(cluster, router, tokenizer)
        self._report.rooms(self._rooms, self._killed_at)
        trouble = self._engine_trouble(router, cluster)
        self._report.proof_begins(self._rooms)
        proof = self._prove(Model(weights), tokenizer)
        status = self._report.verdict(self._rooms, proof, trouble, bool(self._killed_at))
        if options.keep and status == 0:
            self._keep(cluster)
        return status

    def _pages_needed(self, weights: Weights) -> int:
        """Pages that each engine gets. Raises DemoError for a prompt that the model cannot take."""
        most = 0
        limit = weights.config.context_tokens - 64
        for room in self._rooms:
            tokens = len(room.tokens) + room.max_tokens
            if tokens > limit:
                raise DemoError(
                    f"prompt {room.number} and its answer may have {limit} tokens, not {tokens}"
                )
            most = max(most, -(-tokens // 16))
        return max(_PAGES_AT_LEAST, most)

    def _serve(self, cluster: Cluster, router: Router, tokenizer: ChatTokenizer) -> None:
        traffic = Traffic(self._rooms, router, tokenizer, self._terminal)
        self._terminal.begin(self._rooms)
        traffic.run(self._checker(cluster), self._options.timeout)
        self._terminal.end()

    def _checker(self, cluster: Cluster) -> Callable[[], None]:
        """What is done between events: look at the processes, and kill one if it is time."""

        def check() -> None:
            cluster.check()
            running = [room for room in self._rooms if room.id >= 0 and not room.over]
            if self._options.ctl and len(running) > 1 and not self._ctl_shown:
                self._ctl_shown = True
                self._terminal.say(cluster.ctl("rooms"))
            after, what = self._options.kill_after, self._options.kill
            if not after or self._killed_at or sum(r.received for r in self._rooms) < after:
                return
            process = cluster.kill_prefill(what)
            self._killed_at = time.monotonic()
            self._report.killed(what, process, sum(r.received for r in self._rooms))

        return check

    def _engine_trouble(self, router: Router, cluster: Cluster) -> list[str]:
        """Engines that still hold a room or a page though every room is over."""
        sides: list[Side] = [*SIDES]
        if self._killed_at and self._options.kill == "engine":
            sides.remove("prefill")
        trouble = []
        for side in sides:
            rooms, pages = Traffic.engine_stats(router, side, cluster.check)
            if (rooms, pages) != (0, 0):
                trouble.append(f"the {side} engine still has {rooms} rooms and {pages} pages")
        return trouble

    def _prove(self, model: Model, tokenizer: ChatTokenizer) -> Proof:
        def progress(number: int) -> None:
            self._terminal.status(f"computing prompt {number} again, in one process")

        return prove(model, self._rooms, tokenizer.stop_tokens, progress)

    def _keep(self, cluster: Cluster) -> None:
        """Waits for a signal, which is the ordinary end here."""
        self._report.write_json(self._rooms, 0, "")
        self._report.kept(cluster)
        with contextlib.suppress(Interrupted):
            while True:
                cluster.check()
                time.sleep(0.2)
