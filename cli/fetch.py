"""Fetching a model with a progress bar on standard error."""

from __future__ import annotations

import threading

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.progress import TimeRemainingColumn as RemainingColumn

from core.config import ModelConfig
from text.card import ModelCard
from text.hub import resolve
from text.model_card import load_card


def fetch_card(config: ModelConfig, *, refresh: bool = False) -> ModelCard:
    """The model's card; fetches the model first if it isn't on this machine. Raises ConfigError."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), RemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        return load_card(resolve(config, FetchBars(progress), refresh=refresh))


class FetchBars:
    """A `text.progress.Progress` that keeps one bar for each file."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def __call__(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        with self._lock:
            if what not in self._tasks:
                self._tasks[what] = self._progress.add_task(what, total=total_bytes)
        self._progress.update(self._tasks[what], completed=done_bytes, total=total_bytes)
