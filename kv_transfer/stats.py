"""What transfers cost, counted; others export it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from core.histogram import Durations, Histogram

TRANSFER_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5)


@dataclass(frozen=True, slots=True)
class TransferTotals:
    """Totals since the start of the process."""

    num_messages: int
    num_bytes: int
    num_transfers: int
    """Completed ones."""
    transfer_s: Histogram
    """Of completed transfers, from the pull's opening to its close."""
    exposed_s: float
    """Summed time from P's last chunk to the last block on D: what the prefill did not hide."""
    failures: Mapping[str, int]
    """By reason."""


class TransferStats:
    """Counters of one worker's transfers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_messages = 0
        self._num_bytes = 0
        self._num_transfers = 0
        self._transfer_s = Durations(TRANSFER_BOUNDS_S)
        self._exposed_s = 0.0
        self._failures: Counter[str] = Counter()

    def message(self, size_bytes: int) -> None:
        with self._lock:
            self._num_messages += 1
            self._num_bytes += size_bytes

    def completed(self, transfer_s: float, exposed_s: float) -> None:
        with self._lock:
            self._num_transfers += 1
            self._transfer_s.observe(transfer_s)
            self._exposed_s += exposed_s

    def failed(self, reason: str) -> None:
        with self._lock:
            self._failures[reason] += 1

    def totals(self) -> TransferTotals:
        with self._lock:
            return TransferTotals(
                self._num_messages,
                self._num_bytes,
                self._num_transfers,
                self._transfer_s.histogram(),
                self._exposed_s,
                dict(self._failures),
            )
