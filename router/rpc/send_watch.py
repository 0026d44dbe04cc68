"""Gives up a gRPC call whose client takes nothing any more.

Its connection may be alive and answer every ping: only flow control tells that nobody reads, by
keeping the next message here.
"""

from __future__ import annotations

import asyncio


class SendWatch:
    """`with watch: yield message`, in the task of the call, which is cancelled when one message has
    waited for the timeout. One timer a call; close it when the call ends."""

    def __init__(self, timeout_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None, "made within a call"
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._since: float | None = None
        self._timer = self._loop.call_later(timeout_s, self._look)

    def __enter__(self) -> None:
        self._since = self._loop.time()

    def __exit__(self, *_: object) -> None:
        self._since = None

    def close(self) -> None:
        """Nothing is sent any more. Idempotent."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        begun = now if self._since is None else self._since
        if now - begun >= self._timeout_s:
            self._task.cancel()
        else:
            self._timer = self._loop.call_at(begun + self._timeout_s, self._look)
