"""Which fault happens when: a schedule that follows from a seed and nothing else (pure).

Kinds come in shuffled rounds, so that a short run meets as many of them as it has faults. A worker
that a fault starts anew may come with faults of its own (core.faults) in what it sends or receives.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from core.errors import ConfigError

T = TypeVar("T")


class FaultKind(enum.StrEnum):
    """What is done to whom. A house offers those that it can carry out."""

    KILL_PREFILL = "kill P"
    KILL_DECODE = "kill D"
    STOP_PREFILL = "stop P"
    STOP_DECODE = "stop D"
    RESTART_PREFILL = "restart P"
    RESTART_DECODE = "restart D"
    KILL_ROUTER = "kill router"
    STOP_ROUTER = "stop router"
    RESTART_ROUTER = "restart router"
    STOP_STORE = "stop store"
    KILL_STORE = "kill store"
    STOP_GCS = "stop GCS"
    KILL_RAYLET = "kill raylet"
    KILL_RANK = "kill rank"
    STOP_RANK = "stop rank"
    CUT_NETWORK = "cut network"


LASTING_S: Mapping[FaultKind, tuple[float, float]] = MappingProxyType(
    {
        FaultKind.STOP_PREFILL: (0.5, 8.0),
        FaultKind.STOP_DECODE: (0.5, 8.0),
        FaultKind.STOP_RANK: (0.5, 18.0),
        FaultKind.STOP_ROUTER: (0.5, 8.0),
        FaultKind.STOP_STORE: (2.0, 6.0),
        FaultKind.STOP_GCS: (20.0, 20.0),
        FaultKind.CUT_NETWORK: (1.0, 8.0),
    }
)
"""Shortest and longest time of what ends by itself: on both sides of every deadline it can miss."""
GROUP_PATIENCE_S = 10.0
"""How long the ranks of a group wait for one another: on a busy machine, too, only for a fault."""

_P_SPECS = (
    "kv_send:delay=0.3:p=0.2",
    "kv_send:corrupt:p=0.1",
    "kv_send:drop:p=0.03",
    "kv_send:truncate:p=0.05",
    "kv_send:fail:p=0.05",
    "kv_control:delay=0.2:p=0.1",
)
_D_SPECS = (
    "kv_recv:delay=0.3:p=0.2",
    "kv_recv:corrupt:p=0.1",
    "kv_recv:fail:p=0.05",
    "kv_recv:drop:p=0.03",
)
SPECS: Mapping[FaultKind, tuple[str, ...]] = MappingProxyType(
    {
        FaultKind.KILL_PREFILL: _P_SPECS,
        FaultKind.RESTART_PREFILL: _P_SPECS,
        FaultKind.KILL_DECODE: _D_SPECS,
        FaultKind.RESTART_DECODE: _D_SPECS,
    }
)
"""Faults that a worker's next life may come with."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault. Times in seconds, from the beginning of the faults."""

    at_s: float
    kind: FaultKind
    target: str
    for_s: float = 0.0
    """How long it lasts; 0 where it is done in a moment."""
    spec: str = ""
    """Faults in the transfers of the worker that is started anew (`faults.spec`)."""

    def __str__(self) -> str:
        lasting = f" for {self.for_s:.1f} s" if self.for_s else ""
        spec = f", then {self.spec}" if self.spec else ""
        return f"{self.at_s:6.1f} s  {self.kind} {self.target}{lasting}{spec}"


def make_plan(
    targets: Mapping[FaultKind, Sequence[str]],
    *,
    seed: int,
    duration_s: float,
    period_s: float,
    in_transfers: bool = True,
) -> tuple[PlannedFault, ...]:
    """Faults in order of time, one every `period_s` give or take a half, none after `duration_s`.

    `targets` names who may be hit by each kind that the house offers; `in_transfers`: workers that
    are started anew may come with faults of their own. Raises ConfigError without any target.
    """
    if not any(targets.values()):
        raise ConfigError("this house offers no kind of fault")
    rng = random.Random(seed)
    kinds = _rounds([kind for kind in FaultKind if targets.get(kind)], rng)
    specs: dict[tuple[str, ...], Iterator[str]] = {
        each: _rounds(["", *each], rng) for each in (_P_SPECS, _D_SPECS)
    }
    faults: list[PlannedFault] = []
    at_s = period_s * rng.uniform(0.2, 0.6)
    while at_s <= duration_s:
        kind = next(kinds)
        target = rng.choice(list(targets[kind]))
        for_s = round(rng.uniform(*LASTING_S[kind]), 2) if kind in LASTING_S else 0.0
        spec = next(specs[SPECS[kind]]) if in_transfers and kind in SPECS else ""
        faults.append(PlannedFault(round(at_s, 2), kind, target, for_s, spec))
        at_s += period_s * rng.uniform(0.5, 1.5)
    return tuple(faults)


def _rounds(items: Sequence[T], rng: random.Random) -> Iterator[T]:
    """All of them in some order, then all of them in another, for ever."""
    while True:
        yield from rng.sample(items, len(items))
