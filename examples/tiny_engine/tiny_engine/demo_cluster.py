"""The demo's services: a bootstrap service, and for each side an agent and its engine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tiny_engine.demo_processes import DemoError, Processes, Signals
from tiny_engine.router import EngineGoneError, Router, Side
from tiny_engine.wire import SOCKET_PATH_BYTES_AT_MOST

SIDES: tuple[Side, Side] = ("prefill", "decode")
BINARIES = ("pageferry-bootstrap", "pageferry-agent")
_START_SECONDS = 60.0
_PACKAGE = Path(__file__).resolve().parents[1]
_CLIENT = _PACKAGE.parents[1] / "clients" / "python" / "src"


@dataclass
class Addresses:
    """Where the services listen: names with what is printed for them."""

    bootstrap: str = ""
    lines: dict[str, str] = field(default_factory=dict)


class Cluster:
    """Starts and ends the services. For the main thread; owns the processes and the router."""

    def __init__(self, folder: Path, bin_dir: Path, transport: str, signals: Signals) -> None:
        """Raises DemoError where binaries are missing, or `folder` has too long a name."""
        for name in BINARIES:
            if not os.access(bin_dir / name, os.X_OK):
                raise DemoError(f"no {name} in {bin_dir}; run ./dev build, or give --bin-dir")
        longest = folder / "prefill-agent.sock.lock"
        if len(os.fsencode(longest)) > SOCKET_PATH_BYTES_AT_MOST:
            raise DemoError(f"{folder} is too long a path for sockets; set TMPDIR to a shorter one")
        self._folder = folder
        self._bin_dir = bin_dir
        self._transport = transport
        # In the names of agents, and so of their shared memory.
        self._run = f"demo-{os.getpid()}-{secrets.token_hex(3)}"
        self._processes = Processes(folder, self._run, signals)
        self._shm: set[Path] = set()
        self._router: Router | None = None
        self.addresses = Addresses()

    def socket(self, side: Side) -> Path:
        """Where a router finds an engine."""
        return self._folder / f"{side}.sock"

    def start(self, pages: int) -> Router:
        """Starts everything, as much as possible at once; returns when both engines take rooms."""
        self._start_binary("bootstrap", "pageferry-bootstrap", ["--listen", "127.0.0.1:0"])
        ports = self._ports("bootstrap")
        self.addresses.bootstrap = f"127.0.0.1:{ports['grpc']}"
        self._note("bootstrap", self.addresses.bootstrap, ports)
        for side in SIDES:
            self._start_agent(side)
            self._start_engine(side, pages)
        for side in SIDES:
            ports = self._ports(f"{side} agent")
            where = f"{self._agent_target(side)}, peers 127.0.0.1:{ports['peer']}"
            self._note(f"{side} agent", where, ports)
        self._router = self._processes.wait_for(
            "both engines to be registered", self._connect, _START_SECONDS, of="decode engine"
        )
        for side, link in self._router.links.items():
            self._shm.add(Path("/dev/shm") / str(link.hello["shm"]).lstrip("/"))
            self.addresses.lines[f"{side} engine"] = f"{link.engine_id} at {self.socket(side)}"
        return self._router

    def check(self) -> None:
        """Raises DemoError where a process has ended by itself."""
        self._processes.check()

    def kill_prefill(self, what: Literal["agent", "engine"]) -> int:
        """kill -9 of the prefill agent or engine; returns the process's id."""
        return self._processes.kill(f"prefill {what}")

    def stop(self) -> list[str]:
        """Ends everything, engines first; returns what went wrong, for people."""
        if self._router is not None:
            self._router.close()
        names = [f"{side} {what}" for what in ("engine", "agent") for side in SIDES]
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

    def _agent_target(self, side: Side) -> str:
        return f"unix:{self._folder}/{side}-agent.sock"

    def _start_binary(self, name: str, binary: str, flags: list[str]) -> None:
        ports = self._port_file(name)
        flags += ["--port-file", str(ports)]
        flags += ["--metrics-listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0"]
        self._processes.start(name, [str(self._bin_dir / binary), *flags], {})

    def _start_agent(self, side: Side) -> None:
        flags = ["--engine-listen", self._agent_target(side), "--peer-listen", "127.0.0.1:0"]
        flags += ["--bootstrap", self.addresses.bootstrap, "--agent-id", f"{self._run}-{side}"]
        flags += ["--transports", self._transport]
        self._start_binary(f"{side} agent", "pageferry-agent", flags)

    def _start_engine(self, side: Side, pages: int) -> None:
        path = [str(_PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
        if find_spec("pageferry") is None:
            path.append(str(_CLIENT))
        command = [sys.executable, "-m", f"tiny_engine.{side}_engine"]
        command += ["--agent", self._agent_target(side), "--engine-id", f"{side}-0"]
        command += ["--listen", str(self.socket(side)), "--pages", str(pages)]
        self._processes.start(f"{side} engine", command, {"PYTHONPATH": os.pathsep.join(path)})

    def _port_file(self, name: str) -> Path:
        return self._folder / f"{name.replace(' ', '-')}.json"

    def _ports(self, name: str) -> dict[str, int]:
        path = self._port_file(name)

        def read() -> dict[str, int] | None:
            with contextlib.suppress(FileNotFoundError, ValueError):
                ports: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
                return ports
            return None

        return self._processes.wait_for(f"the ports of the {name}", read, _START_SECONDS, of=name)

    def _note(self, name: str, where: str, ports: dict[str, int]) -> None:
        more = f"metrics http://127.0.0.1:{ports['metrics']}/metrics, health :{ports['health']}"
        self.addresses.lines[name] = f"{where}, {more}"

    def _connect(self) -> Router | None:
        if all(self.socket(side).exists() for side in SIDES):
            with contextlib.suppress(EngineGoneError):
                return Router(self.socket("prefill"), self.socket("decode"))
        return None
