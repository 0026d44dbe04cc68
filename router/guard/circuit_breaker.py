"""Whether it is worth asking a peer that has failed: a pure decision on a clock of the caller's.

closed     asked; `failures` in a row open it
open       not asked for `rest_s`
half open  one question is let through; its outcome closes or opens it again
"""

from __future__ import annotations


class CircuitBreaker:
    """Each `admits` that says yes is followed by one of `succeeded`, `failed`, `abandoned`."""

    def __init__(self, *, failures: int, rest_s: float) -> None:
        self._most = failures
        self._rest_s = rest_s
        self._failures = 0
        self._open_until: float | None = None
        self._trying = False

    def admits(self, now: float) -> bool:
        if self._open_until is None:
            return True
        if now < self._open_until or self._trying:
            return False
        self._trying = True
        return True

    def succeeded(self) -> None:
        self._failures = 0
        self._open_until = None
        self._trying = False

    def failed(self, now: float) -> None:
        self._failures += 1
        self._trying = False
        if self._failures >= self._most:
            self._open_until = now + self._rest_s

    def abandoned(self) -> None:
        """Nothing was learnt: whoever asked has gone."""
        self._trying = False
