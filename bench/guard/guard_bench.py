"""Measures the guard's checks of prompts and its filter of answers, in this process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.guard.attack_corpus import Attack, attacks
from bench.guard.attack_phrasings import OBLIQUE
from bench.guard.ordinary_texts import (
    QUESTIONS,
    UNSEEN_QUESTIONS,
    documentation,
    documentation_text,
)
from bench.guard.streaming import Streaming, measure_streaming
from bench.stats import percentile
from router.guard.compiled_policy import CompiledPolicy
from router.guard.policy import Policy
from router.guard.prompt_check import check_prompt
from router.guard.prompt_texts import RoleText


@dataclass(frozen=True, slots=True)
class PromptTime:
    """Of one check, in milliseconds; CPU time of the thread leaves out what others did to it."""

    num_characters: int
    text: str
    p50_ms: float
    p99_ms: float
    cpu_p50_ms: float
    cpu_p99_ms: float


@dataclass(frozen=True, slots=True)
class CatchRate:
    """How many attacks of a group are blocked."""

    group: str
    num_attacks: int
    num_caught: int

    @property
    def share(self) -> float:
        return self.num_caught / self.num_attacks


@dataclass(frozen=True, slots=True)
class GuardReport:
    policy: str
    times: list[PromptTime]
    streaming: list[Streaming]
    held_out: list[CatchRate]
    known: CatchRate
    missed: list[str]
    """Held-out attacks that pass, in plain writing."""
    num_paragraphs: int
    num_questions: int
    num_unseen_questions: int
    false_positives: list[str] = field(default_factory=list)


def measure(policy: Policy, *, repeats: int) -> GuardReport:
    """Everything once; `repeats` checks of each size."""
    compiled = CompiledPolicy(policy)
    corpus = list(attacks())
    missed = [a for a in corpus if not _blocked(compiled, a.text)]
    caught = {id(a) for a in corpus} - {id(a) for a in missed}
    held_out = [a for a in corpus if a.held_out]
    paragraphs = list(documentation())
    return GuardReport(
        policy=policy.name,
        times=[_timed(compiled, *case, repeats) for case in _cases()],
        streaming=measure_streaming(),
        held_out=[
            *_rates(held_out, caught, lambda a: a.family),
            *_rates(held_out, caught, lambda a: a.disguise),
            _rate("templates", [a for a in held_out if a.family != OBLIQUE], caught),
            _rate("all", held_out, caught),
        ],
        known=_rate("all", [a for a in corpus if not a.held_out], caught),
        missed=[a.text for a in missed if a.held_out and a.disguise == "plain"],
        num_paragraphs=len(paragraphs),
        num_questions=len(QUESTIONS),
        num_unseen_questions=len(UNSEEN_QUESTIONS),
        false_positives=[
            text
            for text in (*paragraphs, *QUESTIONS, *UNSEEN_QUESTIONS)
            if _blocked(compiled, text)
        ],
    )


def _blocked(compiled: CompiledPolicy, text: str) -> bool:
    return check_prompt(compiled.prompts, [RoleText("user", text)]).blocked


def _cases() -> list[tuple[str, str]]:
    chinese = "这个图书馆的预算在星期二的会议上讨论过了，大家都同意明年再买一些新书。"
    cases = [("documentation", documentation_text(size)) for size in (400, 4_000, 16_000, 64_000)]
    return [
        *cases,
        ("Chinese", chinese * (5_400 // len(chinese))),
        ("full of anchors", "please ignore the rule " * 700),
    ]


def _timed(compiled: CompiledPolicy, name: str, text: str, repeats: int) -> PromptTime:
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.thread_time()
        _blocked(compiled, text)
        walls.append((time.perf_counter() - wall) * 1e3)
        cpus.append((time.thread_time() - cpu) * 1e3)
    walls.sort()
    cpus.sort()
    return PromptTime(
        num_characters=len(text),
        text=name,
        p50_ms=percentile(walls, 50),
        p99_ms=percentile(walls, 99),
        cpu_p50_ms=percentile(cpus, 50),
        cpu_p99_ms=percentile(cpus, 99),
    )


def _rates(
    group: Sequence[Attack], caught: set[int], key: Callable[[Attack], str]
) -> list[CatchRate]:
    names = Counter(map(key, group))
    return [_rate(name, [a for a in group if key(a) == name], caught) for name in names]


def _rate(name: str, group: Sequence[Attack], caught: set[int]) -> CatchRate:
    return CatchRate(name, len(group), sum(id(attack) in caught for attack in group))
