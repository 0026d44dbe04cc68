"""Programs of Debian's for tests: packages unpacked into a cache directory and started from there.

Nothing is installed. What a package needs and this machine lacks is unpacked beside it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

FETCH_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Binary:
    """How to run a program."""

    path: Path
    environ: Mapping[str, str] = field(default_factory=dict)


def from_debian(package: str, program: str, cache: Path) -> Binary:
    """The file `program` of a package, with its libraries.

    Raises LookupError where there is no apt, and what a failing apt raises.
    """
    root = cached(cache, "debian", lambda fresh: unpack(package, fresh))
    libraries = sorted({str(lib.parent) for lib in root.rglob("*.so*")})
    return Binary(root / program, {"LD_LIBRARY_PATH": ":".join(libraries)})


def write_script(binary: Binary, path: Path) -> Path:
    """A program that is this one, for who can name a program but not its environment."""
    environ = " ".join(f"{name}={shlex.quote(value)}" for name, value in binary.environ.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(f'#!/bin/sh\n{environ} exec {shlex.quote(str(binary.path))} "$@"\n')
    fresh.chmod(0o755)
    fresh.rename(path)
    return path


def cached(cache: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """A directory that `fill` filled completely, once; safe against another test run beside us."""
    target = cache / name
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            fresh = Path(scratch) / "root"
            fresh.mkdir()
            fill(fresh)
            with contextlib.suppress(OSError):  # the other run was first
                fresh.rename(target)
    return target


def run(command: list[str], environ: Mapping[str, str] | None = None) -> None:
    """Runs it to its end. Raises CalledProcessError, TimeoutExpired or OSError."""
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        timeout=FETCH_TIMEOUT_S,
        env={**os.environ, **(environ or {})},
    )


def unpack(package: str, root: Path) -> None:
    if shutil.which("apt-get") is None:
        raise LookupError("no apt-get")
    archives = root.parent / "archives"
    (archives / "partial").mkdir(parents=True)
    download = ["apt-get", "install", "-y", "--no-install-recommends", "--download-only"]
    download += ["-o", f"Dir::Cache::archives={archives}", "-o", "Debug::NoLocking=1"]
    try:
        run([*download, package])
    except subprocess.CalledProcessError:  # package lists missing or out of date
        run(["apt-get", "update"])
        run([*download, package])
    for archive in archives.glob("*.deb"):
        run(["dpkg", "-x", str(archive), str(root)])
