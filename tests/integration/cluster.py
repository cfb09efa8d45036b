"""Real processes for the integration tests: a bootstrap service, agents, and engines that are us.

Programs are looked for in $PAGEFERRY_BIN_DIR, then $PAGEFERRY_BIN, then build/dev/bin.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

ROOT = pathlib.Path(os.environ.get("PAGEFERRY_ROOT", pathlib.Path(__file__).parents[2]))
BIN_DIR = pathlib.Path(
    os.environ.get("PAGEFERRY_BIN_DIR")
    or os.environ.get("PAGEFERRY_BIN")
    or ROOT / "build" / "dev" / "bin"
)
START_SECONDS = 20.0
# The same tests run over each way.
TRANSPORT_FLAGS = [f"--transports={os.environ.get('PAGEFERRY_TEST_TRANSPORT', 'local')}"]


def wait_until(what: str, condition: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
    """The first true value of `condition`, or an error that says what did not happen."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"within {seconds} s there was no: {what}")
        time.sleep(0.01)  # between looks at a file or a process, neither of which can be waited on


@dataclass
class Program:
    """A process of ours, its port file and its log."""

    name: str
    command: list[str]
    folder: pathlib.Path
    process: subprocess.Popen[bytes] | None = None
    killed: bool = False
    ports: dict[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> pathlib.Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> Program:
        port_file = self.folder / f"{self.name}.json"
        port_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "--port-file", str(port_file)], stdout=log, stderr=log
            )
        running, self.killed = self.process, False

        def started() -> bool:
            if running.poll() is not None:
                raise AssertionError(f"{self.name} ended: {self.log.read_text()[-2000:]}")
            return port_file.exists()

        wait_until(f"port file of {self.name}", started)
        self.ports = json.loads(port_file.read_text())
        return self

    def kill(self) -> None:
        """As the kernel does it when memory runs out."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(START_SECONDS)
        self.killed = True

    def stop(self) -> int:
        """Asks it to end and answers its exit status."""
        if self.process is None or self.process.poll() is not None:
            return -1 if self.process is None else self.process.returncode
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"{self.name} ignored SIGTERM: {self.log.read_text()[-2000:]}"
            ) from None


class Cluster:
    """Programs of one test, in one folder; ends them all."""

    def __init__(self, folder: pathlib.Path, flags: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.tag = secrets.token_hex(4)
        self.programs: list[Program] = []
        self.bootstrap = self._start(
            "bootstrap",
            "pageferry-bootstrap",
            ["--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0", *flags],
        )

    def _start(self, name: str, binary: str, flags: list[str]) -> Program:
        command = [str(BIN_DIR / binary), *flags, "--metrics-listen", "127.0.0.1:0"]
        program = Program(name, command, self.folder)
        self.programs.append(program)
        return program.start()

    @property
    def bootstrap_target(self) -> str:
        return f"127.0.0.1:{self.bootstrap.ports['grpc']}"

    def agent(self, name: str, *flags: str) -> Program:
        """Starts an agent; `name` is unique in the cluster."""
        unix = [f"--engine-listen=unix:{self.folder}/{name}.sock"]
        arguments = [
            *([] if any(flag.startswith("--engine-listen") for flag in flags) else unix),
            "--peer-listen=127.0.0.1:0",
            "--health-listen=127.0.0.1:0",
            f"--bootstrap={self.bootstrap_target}",
            f"--agent-id={self.agent_id(name)}",
            "--prefault=false",
            *([] if any(flag.startswith("--transports") for flag in flags) else TRANSPORT_FLAGS),
            *flags,
        ]
        return self._start(name, "pageferry-agent", arguments)

    def agent_id(self, name: str) -> str:
        return f"{name}-{self.tag}"

    def target(self, name: str) -> str:
        return f"unix:{self.folder}/{name}.sock"

    def shared_memory(self) -> list[str]:
        """Files of this cluster's agents in /dev/shm."""
        return sorted(path.name for path in pathlib.Path("/dev/shm").glob(f"*-{self.tag}.*"))

    def close(self) -> None:
        """Ends all; removes what those left that were killed, which no program can do itself."""
        for program in reversed(self.programs):
            program.stop()
            if program.killed:
                for path in pathlib.Path("/dev/shm").glob(
                    f"pageferry.{self.agent_id(program.name)}.*"
                ):
                    path.unlink()


@contextlib.contextmanager
def cluster(*flags: str) -> Iterator[Cluster]:
    """A bootstrap service in a folder of its own; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="pf-") as folder:
        running = Cluster(pathlib.Path(folder), flags)
        try:
            yield running
        finally:
            running.close()
        assert running.shared_memory() == [], "agents that were stopped left shared memory"
