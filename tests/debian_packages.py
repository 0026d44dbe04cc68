"""Programs for tests from Debian's packages: unpacked into a cache directory, never installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

FETCH_TIMEOUT_S = 120.0


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


def unpack(package: str, root: Path) -> None:
    """The package and whatever of its dependencies this machine lacks. Raises LookupError where
    there is no apt, CalledProcessError where it fails."""
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


def run(command: list[str], environ: Mapping[str, str] | None = None) -> None:
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        timeout=FETCH_TIMEOUT_S,
        env={**os.environ, **(environ or {})},
    )
