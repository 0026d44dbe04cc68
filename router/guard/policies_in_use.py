"""The policies of the moment: a file that is changed takes effect with the next request.

start      whatever is wrong with the file is a ConfigError
later      a file that is wrong changes nothing: the last good policies stay, with a warning
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from core.errors import ConfigError
from router.guard.compiled_policy import CompiledBook, compiled
from router.guard.policy_file import builtin_book, read_policies

log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]


class PoliciesInUse:
    """Looks at the file's stamp for every request, and reads it when that has changed."""

    def __init__(self, path: Path | None) -> None:
        """The built-in policy without a file. Raises ConfigError."""
        self._path = path
        self._stamp = _stamp(path)
        self._book = _load(path)
        self._loading = asyncio.Lock()

    async def current(self) -> CompiledBook:
        if self._path is not None and _stamp(self._path) != self._stamp:
            async with self._loading:
                await self._reload()
        return self._book

    async def _reload(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            self._book = await asyncio.to_thread(_load, self._path)
            log.info("%s was replaced: its policies are in use", self._path)
        except ConfigError as error:
            log.warning("the policies in use stay: %s", error.message)
        # Only now: who is refused by the file as it was then, tries again with the next request.
        self._stamp = stamp


def _load(path: Path | None) -> CompiledBook:
    return compiled(builtin_book() if path is None else read_policies(path))


def _stamp(path: Path | None) -> _Stamp | None:
    """What changes with a file; None while there is none."""
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
