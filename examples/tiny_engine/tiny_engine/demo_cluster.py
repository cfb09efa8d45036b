"""The demo's services: a bootstrap service, and for each side an agent and its engine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tiny_engine.demo_options import DemoOptions
from tiny_engine.demo_processes import DemoError, Processes, Signals
from tiny_engine.router import EngineGoneError, Router, Side
from tiny_engine.wire import SOCKET_PATH_BYTES_AT_MOST

SIDES: tuple[Side, Side] = ("prefill", "decode")
BINARIES = ("pageferry-bootstrap", "pageferry-agent", "pageferryctl")
_START_SECONDS = 60.0
_PACKAGE = Path(__file__).resolve().parents[1]
_CLIENT = _PACKAGE.parents[1] / "clients" / "python" / "src"


@dataclass
class Addresses:
    """Where the services listen: names with what is printed for them."""

    bootstrap: str = ""
    lines: dict[str, str] = field(default_factory=dict)


def make_certs(folder: Path) -> Path:
    """Throw-away certificates, as `./dev certs` makes them. Raises DemoError."""
    script = _PACKAGE.parents[1] / ".ci" / "certs.sh"
    made = subprocess.run([str(script), str(folder)], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise DemoError(f"no certificates: {made.stderr.strip()}")
    return folder


class Cluster:
    """Starts and ends the services. For the main thread; owns the processes and the router."""

    def __init__(self, folder: Path, options: DemoOptions, signals: Signals) -> None:
        """Raises DemoError where binaries are missing, or `folder` has too long a name."""
        for name in BINARIES:
            if not os.access(options.bin_dir / name, os.X_OK):
                raise DemoError(
                    f"no {name} in {options.bin_dir}; run ./dev build, or give --bin-dir"
                )
        longest = folder / "prefill-0-agent.sock.lock"
        if len(os.fsencode(longest)) > SOCKET_PATH_BYTES_AT_MOST:
            raise DemoError(f"{folder} is too long a path for sockets; set TMPDIR to a shorter one")
        self._folder = folder
        self._options = options
        # In the names of agents, and so of their shared memory.
        self._run = f"demo-{os.getpid()}-{secrets.token_hex(3)}"
        self._certs = make_certs(folder / "certs") if options.mtls else None
        self._processes = Processes(folder, self._run, signals)
        self._shm: set[Path] = set()
        self._targets: dict[tuple[Side, int], str] = {}
        self._router: Router | None = None
        self.addresses = Addresses()

    def sockets(self, side: Side) -> list[Path]:
        """Where a router finds the replicas of an engine."""
        return [
            self._folder / f"{side}-{rank}.sock" for rank in range(self._options.replicas[side])
        ]

    def _replicas(self) -> list[tuple[Side, int]]:
        return [(side, rank) for side in SIDES for rank in range(self._options.replicas[side])]

    def _name(self, side: Side, rank: int, what: str) -> str:
        """A process, with its number where there are several of its kind."""
        return f"{side} {what}" + (f" {rank}" if self._options.replicas[side] > 1 else "")

    def start(self, pages: int) -> Router:
        """Starts everything, as much as possible at once; returns when both engines take rooms."""
        flags = ["--listen", "127.0.0.1:0", *self._tls_flags("bootstrap")]
        self._start_binary("bootstrap", "pageferry-bootstrap", flags)
        ports = self._ports("bootstrap")
        self.addresses.bootstrap = f"127.0.0.1:{ports['grpc']}"
        self._note("bootstrap", self.addresses.bootstrap, ports)
        for side, rank in self._replicas():
            self._start_agent(side, rank)
        for side, rank in self._replicas():
            if self._certs is not None:
                # Engines dial a port, which is known when their agent listens.
                self._targets[side, rank] = str(
                    self._ports(self._name(side, rank, "agent"))["engine"]
                )
            self._start_engine(side, rank, pages)
        for side, rank in self._replicas():
            name = self._name(side, rank, "agent")
            ports = self._ports(name)
            where = f"{self.agent_target(side, rank)}, peers 127.0.0.1:{ports['peer']}"
            self._note(name, where, ports)
        last = self._name(*self._replicas()[-1], "engine")
        self._router = self._processes.wait_for(
            "all engines to be registered", self._connect, _START_SECONDS, of=last
        )
        for link in self._router.all_links():
            self._shm.add(Path("/dev/shm") / str(link.hello["shm"]).lstrip("/"))
            name = self._name(link.side, link.dp_rank, "engine")
            self.addresses.lines[name] = f"{link.engine_id} at {link.path}"
        return self._router

    def check(self) -> None:
        """Raises DemoError where a process has ended by itself."""
        self._processes.check()

    def ctl(self, *command: str) -> str:
        """What pageferryctl says of all engines and agents, with the command line above it."""
        words = ["--bootstrap", self.addresses.bootstrap]
        if command[0] not in ("engines", "ranks"):
            agents = [self.agent_target(side, rank) for side, rank in self._replicas()]
            words = ["--agent", ",".join(agents)]
        words += [*self._tls_flags("client"), *command]
        program = str(self._options.bin_dir / "pageferryctl")
        ran = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        return f"$ pageferryctl {' '.join(words)}\n{ran.stdout}{ran.stderr}"

    def kill_prefill(self, what: Literal["agent", "engine"]) -> int:
        """kill -9 of the first prefill agent or engine; returns the process's id."""
        return self._processes.kill(self._name("prefill", 0, what))

    def stop(self) -> list[str]:
        """Ends everything, engines first; returns what went wrong, for people."""
        if self._router is not None:
            self._router.close()
        names = [
            self._name(side, rank, what)
            for what in ("engine", "agent")
            for side, rank in self._replicas()
        ]
        said = [self._processes.stop(name) for name in [*names, "bootstrap"]]
        self._processes.close()
        return [words for words in said if words]

    def take_leftovers(self) -> list[Path]:
        """Removes shared memory of this run that is still there, and tells which. After `stop`."""
        found = set(Path("/dev/shm").glob(f"pageferry.{self._run}-*"))
        found |= {path for path in self._shm if path.exists()}
        for path in found:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        return sorted(found)

    def agent_target(self, side: Side, rank: int) -> str:
        """Where an agent serves its engine and operators."""
        if self._certs is not None:
            return self._targets.get((side, rank), "127.0.0.1:0")
        return f"unix:{self._folder}/{side}-{rank}-agent.sock"

    def _start_binary(self, name: str, binary: str, flags: list[str]) -> None:
        ports = self._port_file(name)
        flags += ["--port-file", str(ports)]
        flags += ["--metrics-listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0"]
        self._processes.start(name, [str(self._options.bin_dir / binary), *flags], {})

    def _start_agent(self, side: Side, rank: int) -> None:
        flags = ["--engine-listen", self.agent_target(side, rank), "--peer-listen", "127.0.0.1:0"]
        flags += ["--bootstrap", self.addresses.bootstrap]
        flags += ["--agent-id", f"{self._run}-{side}-{rank}"]
        flags += ["--transports", self._options.transport, *self._tls_flags("agent")]
        self._start_binary(self._name(side, rank, "agent"), "pageferry-agent", flags)

    def _start_engine(self, side: Side, rank: int, pages: int) -> None:
        path = [str(_PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
        if find_spec("pageferry") is None:
            path.append(str(_CLIENT))
        command = [sys.executable, "-m", f"tiny_engine.{side}_engine"]
        command += ["--agent", self.agent_target(side, rank), "--engine-id", f"{side}-0"]
        command += ["--listen", str(self.sockets(side)[rank]), "--pages", str(pages)]
        command += ["--dp-size", str(self._options.replicas[side]), "--dp-rank", str(rank)]
        if side == "prefill" and self._options.find_by == "directory":
            command += ["--dp-by-directory"]
        command += self._tls_flags("client")
        environment = {"PYTHONPATH": os.pathsep.join(path)}
        self._processes.start(self._name(side, rank, "engine"), command, environment)

    def _tls_flags(self, name: str) -> list[str]:
        if self._certs is None:
            return []
        files = {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key"}
        return [f"--tls-{flag}={self._certs / file}" for flag, file in files.items()]

    def _port_file(self, name: str) -> Path:
        return self._folder / f"{name.replace(' ', '-')}.json"

    def _ports(self, name: str) -> dict[str, Any]:
        path = self._port_file(name)

        def read() -> dict[str, Any] | None:
            with contextlib.suppress(FileNotFoundError, ValueError):
                ports: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                return ports
            return None

        return self._processes.wait_for(f"the ports of the {name}", read, _START_SECONDS, of=name)

    def _note(self, name: str, where: str, ports: dict[str, Any]) -> None:
        more = f"metrics http://127.0.0.1:{ports['metrics']}/metrics, health :{ports['health']}"
        self.addresses.lines[name] = f"{where}, {more}"

    def _connect(self) -> Router | None:
        prefill, decode = self.sockets("prefill"), self.sockets("decode")
        if all(path.exists() for path in [*prefill, *decode]):
            with contextlib.suppress(EngineGoneError):
                return Router(prefill, decode, self._options.find_by)
        return None
