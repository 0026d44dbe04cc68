"""Synthetic prompts: token ids, or words that most vocabularies hold as one token each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from bench.workload import Segment, WorkItem
from core.errors import ConfigError

T = TypeVar("T")

# Frequent English words: with their leading space, byte-pair vocabularies know each as one token.
_COMMON = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or "
    "had an they which one you were all her she there would their we him been has when who will "
    "no more if out so up what its about than into them can only other new some time could these "
    "two may first then do any like my now over such our man me even most made after also well "
    "many must before back see through way where get much go good know long very own old day"
)
WORDS = tuple(_COMMON.split())


@dataclass(frozen=True, slots=True)
class TokenRange:
    """The ids that synthetic prompts are made of, upper bound excluded.

    The default leaves out what vocabularies keep at their ends (special and byte tokens) and fits
    every vocabulary of 30,000 and more.
    """

    low: int = 1_000
    high: int = 30_000

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ConfigError(f"token range {self.low}:{self.high}: expected 0 <= low < high")

    def within(self, vocab_size: int) -> TokenRange:
        """The same ids if the vocabulary has them all, else the upper three quarters of its own."""
        return self if self.high <= vocab_size else TokenRange(vocab_size // 4, vocab_size)


def parse_token_range(text: str) -> TokenRange:
    """Reads `1000:30000`; raises ConfigError."""
    low, _, high = text.partition(":")
    try:
        return TokenRange(int(low), int(high))
    except ValueError:
        raise ConfigError(f"token range {text!r}: expected low:high") from None


def prompt_token_ids(item: WorkItem, seed: str, tokens: TokenRange) -> list[int]:
    """The prompt as `item.input_len` token ids; the item must have no text of its own."""
    assert item.text is None
    ids = range(tokens.low, tokens.high)
    return list(chain.from_iterable(_content(segment, seed, ids) for segment in item.segments))


def prompt_text(item: WorkItem, seed: str) -> str:
    """The prompt as text: the item's own, or one word per token."""
    if item.text is not None:
        return item.text
    return " ".join(chain.from_iterable(_content(part, seed, WORDS) for part in item.segments))


def _content(segment: Segment, seed: str, alphabet: Sequence[T]) -> list[T]:
    """The first `num_tokens` of the endless row that seed and key define."""
    rng = random.Random(f"{seed}/{segment.key}")
    return rng.choices(alphabet, k=segment.num_tokens)
