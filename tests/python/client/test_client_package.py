"""The wheel, and the examples of the README."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fake_agent
from conftest import CLIENT

Agents = tuple[fake_agent.FakeAgent, fake_agent.FakeAgent]


EXAMPLES = re.findall(r"```python\n(.*?)```", (CLIENT / "README.md").read_text(), re.S)


@pytest.mark.parametrize("number", range(2))
def test_the_examples_of_the_readme(agents: Agents, tmp_path: Path, number: int) -> None:
    assert len(EXAMPLES) == 2
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number])
    sockets = [agent.target.removeprefix("unix:") for agent in agents]
    done = subprocess.run(
        [sys.executable, str(script), *sockets],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"3 pages, {3 * 4 * 2 * 4096} bytes by fake\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources that has no generated code."""
    pytest.importorskip("setuptools")
    pytest.importorskip("grpc_tools")
    tree = tmp_path_factory.mktemp("tree")
    generated = ("agent", "bootstrap", "error", "peer", "topology")
    unwanted = shutil.ignore_patterns(*generated, "build", "*.egg-info", "__pycache__")
    shutil.copytree(CLIENT, tree / "clients" / "python", ignore=unwanted)
    (tree / "protos").symlink_to(CLIENT.parents[1] / "protos")
    out = tree / "out"
    command = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w"]
    subprocess.run(
        [sys.executable, *command, str(out), str(tree / "clients" / "python")], check=True
    )
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_has_types_and_generated_code(wheel: Path) -> None:
    assert wheel.name == "pageferry-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read("pageferry-0.1.0.dist-info/METADATA").decode()
    assert {"pageferry/py.typed", "pageferry/client.py"} <= names
    for package in ("agent", "bootstrap", "error", "peer", "topology"):
        for suffix in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py"):
            assert f"pageferry/{package}/v1/{package}{suffix}" in names
        assert f"pageferry/{package}/v1/__init__.py" in names
    assert {"numpy", "grpcio", "protobuf"} <= set(
        re.findall(r"^Requires-Dist: (\w+)", metadata, re.M)
    )
    assert not [name for name in names if name.startswith(("tools", "setup"))]


def test_the_wheel_works_when_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    code = (
        "import pageferry; from pageferry.bootstrap.v1 import bootstrap_pb2_grpc as b;"
        "print(pageferry.__file__, b.BootstrapStub.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(target)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{target}/pageferry/__init__.py BootstrapStub\n"


def test_stubs_that_were_not_generated_are_named(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(
            tmp_path, [n for n in archive.namelist() if not n.startswith("pageferry/error/")]
        )
    done = subprocess.run(
        [sys.executable, "-c", "import pageferry"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "run clients/python/generate.sh" in done.stderr
