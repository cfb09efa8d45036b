"""The Dockerfile agrees with the programs: all that can be known without building it."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess

import pytest
from cluster import BIN_DIR

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
STAGES = {
    part.split()[0]: part for part in re.split(r"^FROM \S+ AS ", DOCKERFILE, flags=re.MULTILINE)[1:]
}
PROGRAMS = [
    stage
    for stage in ("bootstrap", "agent", "pageferryctl")
    if stage != "pageferryctl" or (ROOT / "tools/pageferryctl").is_dir()
]


def copied(stage: str) -> str:
    found = re.search(r"^COPY --from=build \S*/(\S+) /usr/bin/$", STAGES[stage], re.MULTILINE)
    assert found, stage
    return found.group(1)


@pytest.mark.parametrize("stage", PROGRAMS)
def test_stage_starts_a_real_program_with_real_flags(stage: str) -> None:
    program = copied(stage)
    entry = re.search(r"^ENTRYPOINT (.*)$", STAGES[stage], re.MULTILINE)
    command = re.search(r"^CMD (.*)$", STAGES[stage], re.MULTILINE)
    assert entry and command
    assert json.loads(entry.group(1)) == [f"/usr/bin/{program}"]
    told = subprocess.run(
        [BIN_DIR / program, "--help"], check=True, capture_output=True, text=True, timeout=30
    ).stdout
    listed = set(re.findall(r"--[a-z][a-z-]*", told)) | {"--help"}
    given = {flag.partition("=")[0] for flag in json.loads(command.group(1))}
    assert given <= listed


def test_images_run_as_a_numeric_user() -> None:
    user = re.findall(r"^USER (\S+)$", STAGES["runtime"], re.MULTILINE)
    assert user == ["10001:10001"]
    for stage in PROGRAMS:
        assert "\nUSER" not in STAGES[stage]


@pytest.mark.skipif(not shutil.which("dpkg"), reason="no dpkg here")
def test_runtime_packages_are_those_ldd_names() -> None:
    needed = set()
    for stage in PROGRAMS:
        linked = subprocess.run(
            ["ldd", BIN_DIR / copied(stage)], check=True, capture_output=True, text=True
        ).stdout
        for path in re.findall(r"=> (/\S+)", linked):
            real = str(pathlib.Path(path).resolve())
            for name in (real, real.removeprefix("/usr")):
                owner = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True)
                if owner.returncode == 0:
                    needed.add(owner.stdout.partition(":")[0])
                    break
            else:
                raise AssertionError(f"no package owns {real}")
    installed = STAGES["runtime"].partition("recommends")[2].partition("&&")[0]
    assert set(installed.replace("\\", " ").split()) == needed


def test_hadolint_finds_nothing() -> None:
    hadolint = ROOT / ".venv/bin/hadolint"
    told = subprocess.run(
        [hadolint, ROOT / "docker/Dockerfile"], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stdout + told.stderr
