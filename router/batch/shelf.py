"""The directory where files lie: named by their ids alone, complete or not there at all.

files/ID             a whole file
incoming/RANDOM      one that is being written
parts/BATCH/EPOCH    what the holder of that epoch of the lease has answered so far
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

_ID = re.compile(r"(file-|batch_)[0-9a-f]{28}")
STALE_S = 24 * 3600.0
"""Nobody writes one file for that long."""


def is_id(name: str) -> bool:
    """Whether a name may be that of a file here."""
    return _ID.fullmatch(name) is not None


class Shelf:
    """Blocking; nothing is made before something is written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.records = directory / "batches.db"

    def path(self, file_id: str) -> Path:
        """Where the file lies, if it does."""
        assert is_id(file_id)
        return self._directory / "files" / file_id

    def incoming(self) -> Path:
        """A place to write a new file at; `keep` or `discard` it."""
        return self._made("incoming") / secrets.token_hex(16)

    def keep(self, written: Path, file_id: str) -> None:
        """It is on the disk, whole and under its name, when this returns."""
        target = self.path(file_id)
        self._made("files")
        with written.open("rb") as file:
            os.fsync(file.fileno())
        written.replace(target)
        _sync_directory(target.parent)

    def discard(self, written: Path) -> None:
        written.unlink(missing_ok=True)

    def remove(self, file_id: str) -> None:
        """Idempotent."""
        self.path(file_id).unlink(missing_ok=True)

    def part(self, batch_id: str, epoch: int) -> Path:
        """To be written by the holder of that epoch alone."""
        assert is_id(batch_id)
        return self._made("parts", batch_id) / f"{epoch:09d}"

    def parts(self, batch_id: str) -> list[Path]:
        """Of all holders, the first one's first."""
        assert is_id(batch_id)
        directory = self._directory / "parts" / batch_id
        return sorted(directory.iterdir()) if directory.is_dir() else []

    def remove_parts(self, batch_id: str) -> None:
        """Idempotent."""
        assert is_id(batch_id)
        shutil.rmtree(self._directory / "parts" / batch_id, ignore_errors=True)

    def remove_stale(self) -> None:
        """What routers that died left unfinished."""
        directory = self._directory / "incoming"
        for path in directory.iterdir() if directory.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - STALE_S:
                    path.unlink()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Path]:
        """A place for a new file, which is gone afterwards unless it was kept."""
        path = self.incoming()
        try:
            yield path
        finally:
            self.discard(path)

    def _made(self, *names: str) -> Path:
        directory = self._directory.joinpath(*names)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
