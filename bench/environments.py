"""Python environments of their own, for software that is measured or tested beside Tandem.

Nothing in them is ever imported by Tandem, and nothing of Tandem by them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from bench.progress import Progress
from core.errors import ConfigError

# It takes minutes, and whoever waits for it may want to work.
_NICE = ("nice", "-n", "10")
_KEPT_CHARACTERS = 2_000


class Commands:
    """Runs commands in an environment's directory; what they write goes to one log."""

    def __init__(self, log: Path, directory: Path, progress: Progress) -> None:
        self._log = log
        self._directory = directory
        self._progress = progress

    def __call__(self, command: Sequence[str]) -> None:
        """Raises ConfigError with the end of the log if the command fails or cannot be run."""
        self._progress(" ".join(command))
        with self._log.open("ab") as output:
            try:
                done = subprocess.run(
                    [*_NICE, *command],
                    cwd=self._directory,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
            except OSError as error:
                raise ConfigError(f"cannot run {command[0]}: {error.strerror}") from None
        if done.returncode:
            tail = self._log.read_text(errors="replace")[-_KEPT_CHARACTERS:]
            raise ConfigError(f"{' '.join(command)} failed; {self._log} ends:\n{tail}")


Recipe: TypeAlias = Callable[[Path, Commands], None]
"""What is done in the directory of a new environment."""


def make_environment(directory: Path, recipe: Recipe, progress: Progress) -> None:
    """Makes it anew, by this process's Python. Raises ConfigError with the end of what failed."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    run = Commands(directory / "install.log", directory, progress)
    run([sys.executable, "-m", "venv", str(directory)])
    recipe(directory, run)
