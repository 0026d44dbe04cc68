"""The hub library's progress bars, which draw nothing here and pass bytes on."""

# tqdm, which the library makes us inherit from, has no types.
# mypy: allow-untyped-calls

from __future__ import annotations

import threading
import time

from huggingface_hub.utils.tqdm import tqdm

from core.errors import ConfigError
from text.progress import Progress

# Of its several bars this one counts bytes on disk over all files, those found there included.
_BYTES_ON_DISK = "huggingface_hub.snapshot_download"


def progress_bar(what: str, progress: Progress, *, timeout_s: float) -> type[tqdm]:
    """A bar class for one download; its bars raise ConfigError once `timeout_s` has passed."""
    deadline = time.monotonic() + timeout_s
    lock = threading.Lock()

    class Bar(tqdm):
        def __init__(self, *args: object, **kwargs: object) -> None:
            self._counts = kwargs.get("name") == _BYTES_ON_DISK
            self._done_bytes = 0
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if time.monotonic() > deadline:
                raise ConfigError(f"fetching {what} took more than {timeout_s:.0f} s")
            if self._counts:
                with lock:
                    self._done_bytes += int(n or 0)
                    progress(what, self._done_bytes, int(self.total or 0) or None)
            drawn: bool | None = super().update(n)
            return drawn

    return Bar
