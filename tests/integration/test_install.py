"""What `cmake --install` leaves behind runs from there."""

from __future__ import annotations

import pathlib
import re
import subprocess

from cluster import BIN_DIR


def test_installed_tree_is_usable(tmp_path: pathlib.Path) -> None:
    install = ["cmake", "--install", str(BIN_DIR.parent), "--prefix", str(tmp_path)]
    subprocess.run(install, check=True, capture_output=True, timeout=60)
    for name in ("pageferry-bootstrap", "pageferry-agent", "pageferryctl"):
        program = tmp_path / "bin" / name
        told = subprocess.run(
            [program, "--version"], check=True, capture_output=True, text=True, timeout=30, cwd="/"
        )
        assert told.stdout.startswith(f"{name} "), told.stdout
    # An operator's machine may have no UCX.
    needed = subprocess.run(
        ["ldd", tmp_path / "bin" / "pageferryctl"], check=True, capture_output=True, text=True
    )
    assert not re.search(r"libuc[pst]", needed.stdout), needed.stdout
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"LICENSE", "bootstrap.proto", "agent.proto", "peer.proto", "error.proto"} <= files
