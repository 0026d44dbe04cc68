"""Whether and when a process whose life is over is started again (pure)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.shell import Ending

FIRST_DELAY_S = 1.0
MAX_DELAY_S = 30.0
HEALTHY_AFTER_S = 60.0
"""A life at least this long makes earlier failures forgiven: the next restart is immediate."""


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered about a process's former lives."""

    num_restarts: int = 0
    num_short_lives: int = 0
    """Failures in a row that followed a life shorter than HEALTHY_AFTER_S."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after `delay_s`."""

    delay_s: float
    history: History


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It has used up its restarts."""

    num_restarts: int


@dataclass(frozen=True, slots=True)
class Retire:
    """It isn't started again: an operator drained it for good."""


def after_drain(history: History, ending: Ending) -> Restart | Retire:
    """Decides what follows an operator's drain. A wanted restart is no failure: it costs none."""
    return Retire() if ending is Ending.RETIRED else Restart(0.0, history)


def after_failure(history: History, *, ready_s: float, max_restarts: int) -> Restart | GiveUp:
    """Decides what follows a failure.

    `ready_s` is how long the last life was ready for, 0 if it never was; `max_restarts` -1 is
    without limit. The first failure is repaired at once, since somebody is waiting for it; a
    process that fails again soon waits 1, 2, 4 ... 30 s, so that a broken one doesn't spin.
    """
    if 0 <= max_restarts <= history.num_restarts:
        return GiveUp(history.num_restarts)
    num_short = 0 if ready_s >= HEALTHY_AFTER_S else history.num_short_lives
    delay_s = min(MAX_DELAY_S, FIRST_DELAY_S * 2 ** (num_short - 1)) if num_short else 0.0
    after = replace(
        history, num_restarts=history.num_restarts + 1, num_short_lives=min(num_short + 1, 10)
    )
    return Restart(delay_s, after)
