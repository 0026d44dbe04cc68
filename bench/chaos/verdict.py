"""What a run showed, from its records alone (pure).

An answer is right if it is the undisturbed one, byte for byte. What a client may see is counted
apart: a refusal that says when to come back, and connections that went with their router.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

MAX_GROWTH = 0.05
"""Of a process's memory (PSS), from before the faults to after them."""

_MOMENT_S = 0.25
"""Output that was on its way when a fault happened still arrives within this."""


class Result(enum.StrEnum):
    """How a request ended for its client."""

    RIGHT = "right"
    LEFT = "left"
    """The client hung up; what had come was right."""
    LOST = "lost"
    DOUBLED = "doubled"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request, over all tries of its client. Times in seconds of the run's clock."""

    number: int
    ask: str
    result: Result
    started_s: float
    ended_s: float
    token_times_s: tuple[float, ...] = ()
    """When output of the last try came."""
    num_refused: int = 0
    """Tries answered 503 or 429 with a time to come back."""
    num_cut_off: int = 0
    """Tries whose connection went with a router that a fault had taken."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FaultDone:
    """One fault that was carried out."""

    kind: str
    target: str
    at_s: float
    over_s: float | None
    """When its target served again; None: it never did."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Books:
    """A worker's blocks when nobody should hold any."""

    worker: str
    num_blocks: int
    num_unheld: int
    """Cached or free."""
    problem: str = ""
    """Why the books don't balance, or why there was no answer; empty if all is well."""

    @property
    def num_leaked(self) -> int:
        return self.num_blocks - self.num_unheld


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process takes that was never started anew."""

    name: str
    pss_mib: float
    own_mib: float
    """Anonymous memory and that shared with peers: pages of programs cost less PSS the more
    processes share them, also those of others on the machine, so only this part tells whether
    anything grows."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a run wrote down."""

    outcomes: tuple[Outcome, ...]
    faults: tuple[FaultDone, ...]
    faults_within: Mapping[str, int]
    books: tuple[Books, ...]
    memory_before: tuple[Memory, ...]
    memory_after: tuple[Memory, ...]
    crashes: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The run in figures. Times in seconds."""

    num_faults: int
    faults_by_kind: dict[str, int]
    num_requests: int
    results: dict[str, int]
    num_refused: int
    num_cut_off: int
    num_leaked_blocks: int
    num_unsound_books: int
    num_unhealed: int
    num_crashes: int
    num_orphans: int
    longest_stall_s: float
    median_silence_s: float | None
    """Of the longest that any stream waited for output because of a fault."""
    worst_silence_s: dict[str, float]
    """The longest such wait, by kind of fault."""
    median_serves_again_s: float | None
    """From a fault until its target served again."""
    memory_growth: dict[str, float]
    """Share that each process grew by which was never started anew."""

    @property
    def num_lost(self) -> int:
        return self.results.get(Result.LOST, 0)

    @property
    def num_doubled(self) -> int:
        return self.results.get(Result.DOUBLED, 0)

    @property
    def num_wrong(self) -> int:
        return self.results.get(Result.WRONG, 0)

    @property
    def num_grown(self) -> int:
        return sum(growth > MAX_GROWTH for growth in self.memory_growth.values())

    @property
    def holds(self) -> bool:
        """Whether nothing happened that must not happen; memory is apart, in `num_grown`."""
        answers = self.num_lost + self.num_doubled + self.num_wrong
        blocks = self.num_leaked_blocks + self.num_unsound_books
        processes = self.num_unhealed + self.num_crashes + self.num_orphans
        return answers + blocks + processes == 0


def judge(evidence: Evidence) -> Verdict:
    """The evidence in figures."""
    outcomes, faults = evidence.outcomes, evidence.faults
    by_kind = Counter(fault.kind for fault in faults)
    by_kind.update(evidence.faults_within)
    healed = [fault.over_s - fault.at_s for fault in faults if fault.over_s is not None]
    silences = _silences_by_kind(faults, outcomes)
    return Verdict(
        num_faults=by_kind.total(),
        faults_by_kind=dict(by_kind),
        num_requests=len(outcomes),
        results=dict(Counter(outcome.result.value for outcome in outcomes)),
        num_refused=sum(outcome.num_refused for outcome in outcomes),
        num_cut_off=sum(outcome.num_cut_off for outcome in outcomes),
        num_leaked_blocks=sum(books.num_leaked for books in evidence.books),
        num_unsound_books=sum(bool(books.problem) for books in evidence.books),
        num_unhealed=len(faults) - len(healed),
        num_crashes=len(evidence.crashes),
        num_orphans=len(evidence.orphans),
        longest_stall_s=longest_stall_s(outcomes),
        median_silence_s=_median([wait_s for waits_s in silences.values() for wait_s in waits_s]),
        worst_silence_s={kind: max(waits_s) for kind, waits_s in silences.items()},
        median_serves_again_s=_median(healed),
        memory_growth=_growth(evidence.memory_before, evidence.memory_after),
    )


def longest_stall_s(outcomes: Sequence[Outcome]) -> float:
    """The longest time between two pieces of output of one answer."""
    gaps = (b - a for each in outcomes for a, b in pairwise(each.token_times_s))
    return max(gaps, default=0.0)


def silence_s(at_s: float, outcomes: Sequence[Outcome]) -> float | None:
    """The longest time that a stream under way at `at_s` waited for output, from then or a moment
    after; None without any.

    Streams that a fault doesn't touch go on within a step, so the longest is what it cost.
    """
    waits = [
        later - max(earlier, at_s)
        for each in outcomes
        for earlier, later in pairwise((each.started_s, *each.token_times_s))
        if each.started_s <= at_s < later and earlier <= at_s + _MOMENT_S
    ]
    return max(waits, default=None)


def _silences_by_kind(
    faults: Sequence[FaultDone], outcomes: Sequence[Outcome]
) -> dict[str, list[float]]:
    silences: defaultdict[str, list[float]] = defaultdict(list)
    for fault in faults:
        if (longest_s := silence_s(fault.at_s, outcomes)) is not None:
            silences[fault.kind].append(longest_s)
    return dict(silences)


def _growth(before: Sequence[Memory], after: Sequence[Memory]) -> dict[str, float]:
    first = {memory.name: memory for memory in before}
    return {
        now.name: (now.own_mib - first[now.name].own_mib) / first[now.name].pss_mib
        for now in after
        if now.name in first
    }


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
