"""How busy the machine is with what we did not start."""

from __future__ import annotations

from pathlib import Path

from bench.runner import Timer

_STAT = Path("/proc/stat")
_WATCHED_S = 0.5
# Fields of the first line after its name (proc(5)): user nice system idle iowait ...
_IDLE = (3, 4)


async def busy_share(timer: Timer, stat: Path = _STAT) -> float:
    """The share of all cores' time that is used, over half a second."""
    before = read_times(stat.read_text())
    await timer.until(timer.now() + _WATCHED_S)
    return busy_between(before, read_times(stat.read_text()))


def read_times(text: str) -> tuple[int, ...]:
    """The ticks of all cores together."""
    name, *fields = text.split("\n", 1)[0].split()
    assert name == "cpu", text
    # Guests' time, at the end, is already part of user's
    return tuple(map(int, fields[:8]))


def busy_between(before: tuple[int, ...], after: tuple[int, ...]) -> float:
    """Used over all ticks; 0 if no tick passed."""
    passed = [b - a for a, b in zip(before, after, strict=True)]
    total = sum(passed)
    return 1 - sum(passed[i] for i in _IDLE) / total if total else 0.0
