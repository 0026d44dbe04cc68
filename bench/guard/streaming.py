"""Measures the filter of answers, on ordinary text that comes a token at a time."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from bench.guard.ordinary_texts import documentation_text
from router.guard.policy import Action, Rule
from router.guard.term_stream import Lexicon, TermStream

NUM_CHARACTERS = 100_000
_TOKEN = re.compile(r"\s?\w{1,6}|\s|[^\w\s]+")


@dataclass(frozen=True, slots=True)
class Streaming:
    """`withheld_share`: tokens after which some text had to wait for the next one."""

    num_terms: int
    num_tokens: int
    us_per_token: float
    withheld_share: float


def measure_streaming() -> Streaming:
    """CPU time of finding terms, of which many begin with words that the text is full of.

    The default model's tokens are about as long as those here.
    """
    words = sorted(set(re.findall(r"[a-z]{5,}", documentation_text(400_000).lower())))
    terms = tuple(f"{word} zebra" for word in words[::8])
    rule = Rule(name="terms", action=Action.BLOCK, terms=terms)
    stream = TermStream(Lexicon([rule]))
    tokens = _TOKEN.findall(documentation_text(NUM_CHARACTERS))
    num_withheld = num_characters = 0
    began = time.thread_time()
    for token in tokens:
        stream.push(token)
        num_characters += len(token)
        num_withheld += stream.open < num_characters
    seconds = time.thread_time() - began
    return Streaming(
        num_terms=len(terms),
        num_tokens=len(tokens),
        us_per_token=seconds / len(tokens) * 1e6,
        withheld_share=num_withheld / len(tokens),
    )
