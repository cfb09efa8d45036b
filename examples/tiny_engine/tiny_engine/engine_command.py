"""The command line of both engines, and how their processes end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import pageferry as pf

from tiny_engine.engine import Engine
from tiny_engine.engine_parts import EngineOptions
from tiny_engine.model import Model
from tiny_engine.model_file import progress
from tiny_engine.weights import load_weights


def run_engine(engine_class: type[Engine], arguments: list[str] | None = None) -> int:
    """The command line of both engines; returns the exit status."""
    role = engine_class.role.name.lower()
    parser = argparse.ArgumentParser(prog=f"python -m tiny_engine.{role}_engine")
    parser.add_argument("--agent", required=True, help="its agent, such as unix:/run/pf/agent.sock")
    parser.add_argument("--engine-id", required=True)
    parser.add_argument("--listen", required=True, type=Path, help="unix socket for routers")
    parser.add_argument("--pages", type=int, default=128, help="pages of the KV cache")
    parser.add_argument("--dp-size", type=int, default=1, help="replicas of the engine")
    parser.add_argument("--dp-rank", type=int, default=0, help="which of them this is")
    parser.add_argument(
        "--dp-by-directory",
        action="store_true",
        help="prefill: rooms are found by the bootstrap service's directory, not by their number",
    )
    for name in ("ca", "cert", "key"):
        parser.add_argument(f"--tls-{name}", type=Path, help="PEM file, for an agent on TCP")
    options = parser.parse_args(arguments)
    if options.tls_ca is None and (options.tls_cert or options.tls_key):
        parser.error("--tls-cert and --tls-key need --tls-ca")
    if not 0 <= options.dp_rank < options.dp_size:
        parser.error("--dp-rank must be below --dp-size")
    # From here to the end a signal ends the process in an orderly way, and only once.
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGINT, _on_signal)
    try:
        model = Model(load_weights())
        engine = engine_class(
            model,
            EngineOptions(
                options.agent,
                options.engine_id,
                options.listen,
                options.pages,
                dp_size=options.dp_size,
                dp_rank=options.dp_rank,
                dp_by_directory=options.dp_by_directory,
                tls=options.tls_ca and pf.Tls(options.tls_ca, options.tls_cert, options.tls_key),
            ),
        )
    except (pf.PageferryError, OSError, RuntimeError) as error:
        progress(f"{role} engine: {error}")
        return 1
    try:
        progress(f"{options.engine_id} serves {options.listen}, process {os.getpid()}")
        engine.run()
    finally:
        engine.close()
    return 0


def _on_signal(number: int, _frame: Any) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(0)
