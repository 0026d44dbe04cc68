"""SIGTERM and SIGINT end a process within its grace time, whatever it is waiting for.

    first signal    `requested` is set: drain, then stop
    second signal   `hurry` is set: skip the drain
    grace is over   last words, then the process exits at once, also when the block has been left:
                    an interpreter that waits for its threads is no excuse

The C-level signal handler writes the signal's number to a socket that a thread of its own reads, so
this works while the main thread sits in a native call and Python's handlers cannot run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TypeAlias

SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_OVERDUE = 70
_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None
_CLOSE = 0  # no signal has this number
_ARM = 255  # nor this one


class StopSignals:
    """Watches for stop signals for the length of a `with` block, in the main thread's loop.

    `grace_s` counts from the first signal, or from `arm()`. `last_words` runs in the watching
    thread just before an overdue exit, and must not block.
    """

    def __init__(self, grace_s: float, last_words: Callable[[], None] | None = None) -> None:
        self.requested = asyncio.Event()
        self.hurry = asyncio.Event()
        self._grace_s = grace_s
        self._last_words = last_words
        self._loop = asyncio.get_running_loop()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="stop-signals", daemon=True)
        self._before: list[tuple[signal.Signals, _Handler]] = []
        self._wakeup_before = -1

    def __enter__(self) -> StopSignals:
        self._thread.start()
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = [(number, signal.getsignal(number)) for number in SIGNALS]
        self.take_over()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before:
            # None: the former handler was not Python's, and cannot be put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._writer.send(bytes([_CLOSE]))

    def take_over(self) -> None:
        """Puts our handlers in place again, after a library has put in its own."""
        for number in SIGNALS:
            signal.signal(number, _noted)

    def arm(self) -> None:
        """Starts the grace time without a signal: the process stops for a reason of its own."""
        self._writer.send(bytes([_ARM]))

    def _watch(self) -> None:
        with self._reader, self._writer:
            deadline = self._watch_for_first()
            while deadline is not None:
                self._reader.settimeout(max(1e-3, deadline - time.monotonic()))
                try:
                    self._notify(self._reader.recv(1)[0], again=True)
                except TimeoutError:
                    self._exit_overdue()

    def _watch_for_first(self) -> float | None:
        """When the process must be gone; None if the block was left without any reason to stop."""
        number = self._reader.recv(1)[0]
        if number == _CLOSE:
            return None
        self._notify(number, again=False)
        return time.monotonic() + self._grace_s

    def _notify(self, number: int, *, again: bool) -> None:
        event = self.hurry if again and number in SIGNALS else self.requested
        if number != _CLOSE:
            with suppress(RuntimeError):  # the loop has ended: nobody waits, the grace time counts
                self._loop.call_soon_threadsafe(event.set)

    def _exit_overdue(self) -> None:
        if self._last_words is not None:
            self._last_words()
        os._exit(EXIT_OVERDUE)


def _noted(number: int, frame: FrameType | None) -> None:
    """The wake-up socket has already carried the signal to the watching thread."""
