"""Faults put in on purpose, to test that the system bears them: what, where and when.

    spec    rule,rule,...      rule    point:action[=seconds][:when ...]
    when    every=N            each N-th occurrence             } all that are given must hold;
            after=N            none of the first N              } none given: every occurrence
            p=X                with this probability            }
            times=N, once      at most so often
            worker=ID          only in the worker of this id

    kv_send:delay=0.5:every=3,kv_send:corrupt:p=0.1,kv_recv:fail:after=2,step:delay=1.0:once

What happens at the n-th occurrence of a point follows from the seed, the worker, the point and n
alone, so that a failure replays. A process without faults has no `Faults` at all.
"""

from __future__ import annotations

import enum
import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

_LOG = logging.getLogger(__name__)

M = TypeVar("M", bound=enum.StrEnum)


class FaultPoint(enum.StrEnum):
    """Where a fault can happen."""

    KV_PACK = "kv_pack"
    """P copies blocks into a message."""
    KV_SEND = "kv_send"
    """P sends a message of blocks."""
    KV_RECV = "kv_recv"
    """D receives a message of blocks."""
    KV_CONTROL = "kv_control"
    """Either side of a link says something on its control stream, heartbeats apart."""
    STEP = "step"
    """A worker computes a step."""
    SESSION = "session"
    """A worker sends a router an event of an attempt."""
    STORE = "store"
    """A worker or a router calls the store."""


class FaultAction(enum.StrEnum):
    """What happens there instead of the right thing."""

    DELAY = "delay"
    """The right thing, so many seconds later."""
    DROP = "drop"
    """Nothing, and nobody is told. What follows on the same link or stream is lost as well, as by a
    cable that is cut: the world doesn't lose one message out of the middle."""
    TRUNCATE = "truncate"
    """Only the first half is sent."""
    CORRUPT = "corrupt"
    """The second half is other bytes."""
    FAIL = "fail"
    """An error."""


_A = FaultAction
POSSIBLE: Mapping[FaultPoint, frozenset[FaultAction]] = MappingProxyType(
    {
        FaultPoint.KV_PACK: frozenset({_A.DELAY, _A.FAIL}),
        FaultPoint.KV_SEND: frozenset({_A.DELAY, _A.DROP, _A.TRUNCATE, _A.CORRUPT, _A.FAIL}),
        FaultPoint.KV_RECV: frozenset({_A.DELAY, _A.DROP, _A.CORRUPT, _A.FAIL}),
        FaultPoint.KV_CONTROL: frozenset({_A.DELAY, _A.DROP, _A.FAIL}),
        FaultPoint.STEP: frozenset({_A.DELAY, _A.FAIL}),
        FaultPoint.SESSION: frozenset({_A.DELAY, _A.FAIL}),
        FaultPoint.STORE: frozenset({_A.DELAY, _A.FAIL}),
    }
)
"""What the world can do at each point: a stream doesn't lose events, memory doesn't send."""


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One rule of a spec."""

    point: FaultPoint
    action: FaultAction
    delay_s: float = 0.0
    every: int = 1
    after: int = 0
    probability: float = 1.0
    times: int | None = None
    worker_id: str | None = None

    def applies(self, occurrence: int, chance: float) -> bool:
        """Whether it holds at the `occurrence`-th time, counted from 1; `times` apart."""
        number = occurrence - self.after
        return number > 0 and number % self.every == 0 and chance < self.probability


@dataclass(frozen=True, slots=True)
class Fault:
    """What is to happen now: first the delay, then the action, if there is one."""

    delay_s: float
    action: FaultAction | None


class Faults:
    """The faults of one process: counts what happens at each point. Thread-safe."""

    def __init__(self, rules: tuple[FaultRule, ...], *, seed: int, worker_id: str) -> None:
        own = (rule for rule in rules if rule.worker_id in (None, worker_id))
        self._rules = tuple(own)
        self._seed = f"{seed}/{worker_id}"
        self._lock = threading.Lock()
        self._num_seen: Counter[FaultPoint] = Counter()
        self._num_applied: Counter[int] = Counter()
        self._delays_end = threading.Event()

    def take(self, point: FaultPoint) -> Fault | None:
        """Counts one more occurrence; None: nothing happens."""
        with self._lock:
            self._num_seen[point] += 1
            occurrence = self._num_seen[point]
            rules = [
                rule
                for index, rule in enumerate(self._rules)
                if rule.point is point and self._applies(index, rule, occurrence)
            ]
        if not rules:
            return None
        delay_s = sum(rule.delay_s for rule in rules)
        actions = (rule.action for rule in rules if rule.action is not FaultAction.DELAY)
        action = next(actions, None)
        _LOG.warning("fault: %s #%d: delay %g s, %s", point, occurrence, delay_s, action)
        return Fault(delay_s, action)

    def num_seen(self, point: FaultPoint) -> int:
        """Occurrences so far, faulty or not."""
        with self._lock:
            return self._num_seen[point]

    def wait(self, delay_s: float) -> None:
        """Blocks the calling thread so long, unless delays are over."""
        self._delays_end.wait(delay_s)

    def end_delays(self) -> None:
        """From now on nobody waits in `wait`."""
        self._delays_end.set()

    def _applies(self, index: int, rule: FaultRule, occurrence: int) -> bool:
        if rule.times is not None and self._num_applied[index] >= rule.times:
            return False
        key = f"{self._seed}/{index}/{rule.point}/{occurrence}"
        applies = rule.applies(occurrence, _chance(key))
        self._num_applied[index] += applies
        return applies


def make_faults(spec: str, *, seed: int, worker_id: str) -> Faults | None:
    """The faults of this process; None without a spec. Says so: nobody may have them unawares."""
    if not spec:
        return None
    _LOG.warning("FAULTS ARE ON, for testing only: %s, seed %d", spec, seed)
    return Faults(parse_faults(spec), seed=seed, worker_id=worker_id)


def parse_faults(spec: str) -> tuple[FaultRule, ...]:
    """The rules of a spec. Raises ValueError that names what is wrong."""
    return tuple(_rule(text.strip()) for text in spec.split(",") if text.strip())


def _rule(text: str) -> FaultRule:
    point_name, *words = text.split(":")
    if not words:
        raise ValueError(f"{text!r}: expected point:action")
    point = _member(FaultPoint, point_name, text)
    action_name, _, seconds = words[0].partition("=")
    action = _member(FaultAction, action_name, text)
    if action not in POSSIBLE[point]:
        known = ", ".join(sorted(POSSIBLE[point]))
        raise ValueError(f"{text!r}: at {point} there can be {known}")
    if (action is FaultAction.DELAY) != bool(seconds):
        raise ValueError(f"{text!r}: a delay has seconds, and nothing else has")
    rule = FaultRule(point, action, _number(seconds, text) if seconds else 0.0)
    for word in words[1:]:
        rule = _with(rule, word, text)
    return rule


def _with(rule: FaultRule, word: str, text: str) -> FaultRule:
    key, _, value = word.partition("=")
    match key:
        case "once" if not value:
            return replace(rule, times=1)
        case "times":
            return replace(rule, times=_count(value, text, least=1))
        case "every":
            return replace(rule, every=_count(value, text, least=1))
        case "after":
            return replace(rule, after=_count(value, text, least=0))
        case "p":
            return replace(rule, probability=_number(value, text))
        case "worker" if value:
            return replace(rule, worker_id=value)
    raise ValueError(f"{text!r}: {word!r} is none of every=, after=, p=, times=, once, worker=")


def _member(kind: type[M], name: str, text: str) -> M:
    try:
        return kind(name)
    except ValueError:
        raise ValueError(f"{text!r}: {name!r} is none of {', '.join(kind)}") from None


def _number(value: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"{text!r}: {value!r} is no number from 0 up")
    return number


def _count(value: str, text: str, *, least: int) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < least:
        raise ValueError(f"{text!r}: {value!r} is no whole number from {least} up")
    return int(value)


def _chance(key: str) -> float:
    """A number in [0, 1) that is always the same for the same key, in every process."""
    digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
    return int.from_bytes(digest) / 2**56
