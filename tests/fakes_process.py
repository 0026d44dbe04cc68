"""Child processes of tests: started with our import path, read line by line, ended for sure."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMPORT_PATH = os.pathsep.join(str(ROOT / folder) for folder in ("", "kernels", "tests"))
DEADLINE_S = 240.0


class Child:
    """A running process whose output is collected."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, text: str) -> str:
        """The first line from here on that holds `text`. Fails the test if it does not come."""
        while True:
            line = self._queue.get(timeout=DEADLINE_S)
            assert line is not None, f"{text!r} never came; the output was:\n{self.output}"
            if text in line:
                return line

    def end(self, timeout_s: float = DEADLINE_S) -> int:
        """The exit status, once it has ended by itself."""
        status = self.process.wait(timeout=timeout_s)
        self._reader.join(timeout=DEADLINE_S)
        return status

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line)
                self._queue.put(line)
        self._queue.put(None)


@contextlib.contextmanager
def child(command: Sequence[str], environ: Mapping[str, str] | None = None) -> Iterator[Child]:
    """A process for the length of the block, killed at its end if it still runs."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": IMPORT_PATH, **(environ or {})},
        start_new_session=True,
    )
    started = Child(process)
    try:
        yield started
    finally:
        process.kill()
        started.end()


def python(code: str) -> list[str]:
    """The command line that runs a piece of Python."""
    return [sys.executable, "-c", code]


def tandem(*arguments: str) -> list[str]:
    """The command line of the `tandem` command."""
    return [sys.executable, "-m", "cli.main", *arguments]
