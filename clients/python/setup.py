"""Puts freshly generated protocol code into what is built; the rest is in pyproject.toml."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
PROTOS = next((p for p in (HERE / "protos", HERE.parent.parent / "protos") if p.is_dir()), None)


def runtime_requirements() -> list[str]:
    """Takes the versions of grpcio and protobuf from grpcio-tools.

    Generated code refuses to load with older ones than the generator that made it.
    """
    tools = [r for r in requires("grpcio-tools") or [] if re.match(r"(grpcio|protobuf)\b", r)]
    return ["numpy>=1.26", *tools]


class BuildWithProtos(build_py):
    """Generates into the build, or into the source tree for an editable install."""

    def run(self) -> None:
        """Copies the sources, then adds the generated code."""
        super().run()
        if PROTOS is None:
            raise SystemExit("pageferry: protos/ is neither here nor two folders up")
        out = HERE / "src" if self.editable_mode else Path(self.build_lib)
        command = [sys.executable, str(HERE / "tools" / "generate.py")]
        subprocess.run([*command, "--protos", str(PROTOS), "--out", str(out)], check=True)


class SdistWithProtos(sdist):
    """Takes the protos along, so that a wheel can be built from the archive."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Adds protos/ and the generator."""
        super().make_release_tree(base_dir, files)
        if PROTOS is not None:
            shutil.copytree(PROTOS / "pageferry", Path(base_dir) / "protos" / "pageferry")
        shutil.copytree(HERE / "tools", Path(base_dir) / "tools", dirs_exist_ok=True)


setup(
    install_requires=runtime_requirements(),
    cmdclass={"build_py": BuildWithProtos, "sdist": SdistWithProtos},
)
