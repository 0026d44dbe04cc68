"""The requests of golden tests: each way of choosing tokens, on prompts of the real model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fakes_golden import Ask
from fakes_prompts import CHATS, CODE, LISTS, LONG, PROMPTS, PROSE, UNICODE

from core.request import SamplingParams
from text.bad_words import bad_word_tokens
from text.tokenizer import Tokenizer

NUM_TOKENS = 24
GREEDY = SamplingParams(NUM_TOKENS, temperature=0.0)
WARM = SamplingParams(NUM_TOKENS, temperature=0.8, seed=20_240_229)
FILTERED = replace(WARM, top_p=0.9, top_k=50, min_p=0.02)
PENALISED = replace(WARM, repetition_penalty=1.1, presence_penalty=1.5, frequency_penalty=1.0)
MIXED = replace(FILTERED, presence_penalty=0.8, frequency_penalty=0.4, logprobs=3, min_tokens=5)
BIASED = replace(
    GREEDY,
    repetition_penalty=1.2,
    frequency_penalty=0.5,
    logit_bias=((28, 2.5), (30, -4.0)),
    min_tokens=NUM_TOKENS,
)
KINDS = (GREEDY, WARM, FILTERED, PENALISED, MIXED, BIASED)


def golden_asks(tokenizer: Tokenizer) -> list[Ask]:
    """One of each kind, and what else has a path of its own: choices, logprobs, long prompts."""

    def ask(name: str, text: str, sampling: SamplingParams, n: int = 1) -> Ask:
        return Ask(name, tuple(tokenizer.encode(text)), sampling, n)

    allowed = tuple(sorted({*tokenizer.encode(PROSE[0]), *tokenizer.encode(PROSE[1])}))
    return [
        ask("greedy", CHATS[1], GREEDY),
        ask("greedy with logprobs", CODE[0], replace(GREEDY, logprobs=5)),
        ask("greedy with penalties", LISTS[0], BIASED),
        ask("warm", CHATS[2], WARM),
        ask("warm, two choices with logprobs", PROSE[2], replace(WARM, logprobs=2), n=2),
        ask("warm and filtered", UNICODE[0], FILTERED),
        ask("warm with penalties", CHATS[9], PENALISED),
        ask("warm, mixed, two choices", CODE[7], MIXED, n=2),
        ask("warm after a long prompt", LONG[1], replace(WARM, ignore_eos=True)),
        _without_words(ask("warm without some words", PROSE[1], WARM, n=2), tokenizer),
        ask("greedy with few tokens", PROSE[0], replace(GREEDY, allowed_token_ids=allowed)),
    ]


def _without_words(ask: Ask, tokenizer: Tokenizer) -> Ask:
    """Common ones, of one token and of several."""
    words = ("the", "of a", "and", "in this", "for", ", I")
    sampling = replace(ask.sampling, bad_words=bad_word_tokens(tokenizer, words))
    return replace(ask, sampling=sampling, bad_words=words)


def mixed_asks(tokenizer: Tokenizer, num_asks: int) -> list[Ask]:
    """Many different requests of few tokens: prompts, kinds, seeds and lengths all vary."""
    return list(itertools.islice(_mixed(tokenizer), num_asks))


def mirrored(asks: Sequence[Ask]) -> list[Ask]:
    """Each ask twice, such that workers which take turns get one of each."""
    return [*asks, *reversed(asks)]


def long_asks(tokenizer: Tokenizer, num_asks: int) -> list[Ask]:
    """Prompts of several chunks that share no prefix, and few tokens."""
    return [
        Ask(
            f"long {i}",
            tuple(tokenizer.encode(f"Letter {i}. {LONG[i % len(LONG)]}"))[:300],
            replace(KINDS[i % len(KINDS)], seed=2000 + i, max_tokens=6, min_tokens=0),
        )
        for i in range(num_asks)
    ]


def _mixed(tokenizer: Tokenizer) -> Iterator[Ask]:
    for i in itertools.count():
        # 7 is prime to the number of prompts, so that kinds meet ever other prompts
        text = PROMPTS[7 * i % len(PROMPTS)]
        sampling = replace(KINDS[i % len(KINDS)], seed=1000 + i, max_tokens=5 + i % 7, min_tokens=0)
        yield Ask(f"mixed {i}", tuple(tokenizer.encode(text)), sampling, n=2 if i % 8 == 5 else 1)
