"""Generates protocol code (modules, gRPC stubs, type stubs) from protos/pageferry.

The proto packages are called pageferry.<name>.v1 and so are the Python packages: what is
generated becomes a part of the package `pageferry` itself, and needs no rewritten imports.
"""

import argparse
import shutil
import sys
from importlib.resources import files
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


def generate(protos: Path, out: Path) -> int:
    """Writes <out>/pageferry/<name>/v1/*; returns protoc's exit status."""
    from grpc_tools import protoc

    sources = sorted(protos.glob("pageferry/*/v1/*.proto"))
    if not sources:
        print(f"no protos in {protos}", file=sys.stderr)
        return 1
    for name in {source.relative_to(protos).parts[1] for source in sources}:
        shutil.rmtree(out / "pageferry" / name, ignore_errors=True)
    status = protoc.main(
        [
            "protoc",
            f"-I{protos}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--python_out={out}",
            f"--pyi_out={out}",
            f"--grpc_python_out={out}",
            *map(str, sources),
        ]
    )
    for source in sources:
        version = out / source.relative_to(protos).parent
        for package in (version, version.parent):
            (package / "__init__.py").write_text('"""Generated from protos/; do not edit."""\n')
    return int(status)


def main() -> int:
    """Parses the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protos", type=Path, default=HERE.parent.parent / "protos")
    parser.add_argument("--out", type=Path, default=HERE / "src")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    return generate(arguments.protos.resolve(), arguments.out.resolve())


if __name__ == "__main__":
    sys.exit(main())
