"""Measures the filter of answers, on ordinary text that comes a token at a time."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.guard.ordinary_texts import documentation_text
from router.guard.output_filter import OutputFilter
from router.guard.policy import Action, Rule
from router.guard.term_stream import Lexicon
from router.life.choice import Delta

NUM_CHARACTERS = 100_000
_TOKEN = re.compile(r"\s?\w{1,6}|\s|[^\w\s]+")
_TERMS = (
    *("pipe bomb", "nerve gas", "credit card number", "social security number", "project falcon"),
    *("hate speech", "money laundering", "stolen account", "fake passport", "child abuse"),
    *("机密文件", "毒品交易", "洗钱", "假护照", "炸弹"),
)


@dataclass(frozen=True, slots=True)
class Streaming:
    """`withheld_share`: tokens that wait for the next one."""

    lexicon: str
    num_terms: int
    num_tokens: int
    us_per_token: float
    withheld_share: float


def measure_streaming() -> list[Streaming]:
    """CPU time of the filter; the default model's tokens are about as long as those here."""
    words = sorted(set(re.findall(r"[a-z]{5,}", documentation_text(400_000).lower())))
    return [
        _measured("ordinary", _TERMS),
        _measured("begins like the text's words", [f"{word} zebra" for word in words[::8]]),
    ]


def _measured(name: str, terms: Sequence[str]) -> Streaming:
    rule = Rule(name="terms", action=Action.BLOCK, terms=tuple(terms))
    terms_filter = OutputFilter(Lexicon([rule]))
    deltas: list[Delta] = []
    position = 0
    for token in _TOKEN.findall(documentation_text(NUM_CHARACTERS)):
        span = position, position + len(token)
        deltas.append(Delta(0, token, (len(deltas),), spans=(span,)))
        position += len(token)
    num_withheld = 0
    began = time.thread_time()
    for delta in deltas:
        num_withheld += not terms_filter.push(delta)
    seconds = time.thread_time() - began
    return Streaming(
        lexicon=name,
        num_terms=len(terms),
        num_tokens=len(deltas),
        us_per_token=seconds / len(deltas) * 1e6,
        withheld_share=num_withheld / len(deltas),
    )
