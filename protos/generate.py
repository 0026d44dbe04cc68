"""Generates the Python code beside each *.proto; with --check, only says whether it is fresh."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        generated = _generate(Path(scratch))
        stale = [path for path, text in generated.items() if _stale(path, text)]
        if check:
            for path in stale:
                sys.stderr.write(f"{path.relative_to(ROOT)} is stale: run `make protos`\n")
            return 1 if stale else 0
        for path in stale:
            path.write_text(generated[path])
    return 0


def _generate(out: Path) -> dict[Path, str]:
    """protoc runs from the repository's root, so that imports come out as `protos.x_pb2`."""
    protos = sorted(p.relative_to(ROOT) for p in (ROOT / "protos").glob("*.proto"))
    plugins = Path(sys.executable).parent
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={out}"]
    command += [f"--grpc_python_out={out}", f"--mypy_out={out}", f"--mypy_grpc_out={out}"]
    command += [f"--plugin={p}={plugins / p}" for p in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    subprocess.run([*command, *map(str, protos)], cwd=ROOT, check=True, capture_output=True)
    return {
        ROOT / p.with_name(p.stem + suffix): (out / p.with_name(p.stem + suffix)).read_text()
        for p in protos
        for suffix in SUFFIXES
    }


def _stale(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text() != text


if __name__ == "__main__":
    sys.exit(main())
