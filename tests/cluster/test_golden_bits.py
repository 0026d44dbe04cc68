"""Bit for bit the same answers however they are computed, in every precision.

Sixty-four mixed requests, each alone = all in one batch = in other chunks = after preemption = from
a prefill and a decode worker. Tokens and log-probabilities are compared without any tolerance: a
log-probability is a sum over the whole vocabulary, so one bit of one logit shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from fakes_asks import mixed_asks
from fakes_golden import Answer, Ask, ChoiceAnswer
from fakes_real_house import pair_house

from core.config import load_config
from core.request import TokenEvent
from decode_worker.offline import OfflineEngine
from text.tokenizer import Tokenizer

NUM_ASKS = {"bfloat16, int8 KV": 36}
"""Of each precision; 64 where nothing is said."""
NUM_COMBINED = 18
"""In combined mode, which computes as the engines of the other tests do: each kind three times."""
SHORT_TOKENS = 3
"""Of most half dozens: a first token, and two that read what was written before them."""
PRECISIONS = {
    "float32": ("model.dtype=float32",),
    "bfloat16": ("model.dtype=bfloat16",),
    "w8a8": ("model.dtype=bfloat16", "model.quantization=w8a8"),
    "bfloat16, int8 KV": ("model.dtype=bfloat16", "cache.kv_cache_dtype=int8"),
}
SETTINGS = ("parallel.num_threads=1", "model.max_model_len=512", "cache.num_blocks=1024")


@dataclass(frozen=True)
class Golden:
    """What one precision answers to each request alone."""

    precision: tuple[str, ...]
    asks: list[Ask]
    alone: list[Answer]

    def first(self, num_asks: int) -> Golden:
        return Golden(self.precision, self.asks[:num_asks], self.alone[:num_asks])

    def check(self, answers: Sequence[Answer]) -> None:
        for ask, right, got in zip(self.asks, self.alone, answers, strict=True):
            assert got.choices == right.choices, ask.name


@pytest.fixture(scope="module", params=PRECISIONS)
def golden(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Iterator[Golden]:
    precision = PRECISIONS[request.param]
    num_asks = NUM_ASKS.get(request.param, 64)
    asks = [compared(ask, place) for place, ask in enumerate(mixed_asks(tokenizer, num_asks))]
    lone = engine(*precision, "cache.enable_prefix_caching=false")
    yield Golden(precision, asks, [answers(lone, [ask])[0] for ask in asks])


def compared(ask: Ask, place: int) -> Ask:
    """With log-probabilities; six in a row, one of each kind of sampling, are as long as they were,
    the next dozen and a half short."""
    longest = ask.sampling.max_tokens if place // 6 % 4 == 0 else SHORT_TOKENS
    return replace(ask, sampling=replace(ask.sampling, logprobs=2, max_tokens=longest))


def engine(*settings: str) -> OfflineEngine:
    return OfflineEngine.load(load_config(environ={}, overrides=[*SETTINGS, *settings]))


def answers(on: OfflineEngine, asks: Sequence[Ask]) -> list[Answer]:
    """All at once; every choice from the prompt on."""
    attempts = {
        (ask.name, choice): replace(ask.attempt((choice,)), transfer_id=f"{ask.name}/{choice}")
        for ask in asks
        for choice in range(ask.n)
    }
    outputs = on.generate(attempts.values())
    return [
        Answer(
            [
                choice_answer(outputs[attempts[ask.name, choice].transfer_id, choice])
                for choice in range(ask.n)
            ]
        )
        for ask in asks
    ]


def choice_answer(events: Sequence[TokenEvent]) -> ChoiceAnswer:
    reason = events[-1].finish_reason
    assert reason is not None
    return ChoiceAnswer(
        [event.token_id for event in events],
        [event.logprobs for event in events if event.logprobs is not None],
        reason.value,
    )


def test_all_in_one_batch_answer_as_each_alone(golden: Golden) -> None:
    together = engine(*golden.precision, "scheduler.max_num_seqs=128")
    golden.check(answers(together, golden.asks))
    golden.check(answers(together, golden.asks))  # now on cached prefixes


def test_greedy_tokens_are_the_same_where_nobody_asks_for_log_probabilities(
    golden: Golden,
) -> None:
    """Then a head may leave out all logits but the largest."""
    greedy = {ask.name: right for ask, right in zip(golden.asks, golden.alone, strict=True)}
    asks = [
        replace(ask, sampling=replace(ask.sampling, logprobs=None))
        for ask in golden.asks
        if ask.sampling.greedy and not ask.sampling.logit_bias
    ]
    assert len(asks) >= 6
    together = engine(*golden.precision, "scheduler.max_num_seqs=64")
    for ask, got in zip(asks, answers(together, asks), strict=True):
        right = greedy[ask.name]
        assert [c.token_ids for c in got.choices] == [c.token_ids for c in right.choices], ask.name


@pytest.mark.parametrize("chunk_tokens", [24, pytest.param(333, marks=pytest.mark.slow)])
def test_other_chunks_change_no_bit(golden: Golden, chunk_tokens: int) -> None:
    chunked = engine(
        *golden.precision,
        f"scheduler.prefill_chunk_tokens={chunk_tokens}",
        "scheduler.max_num_seqs=20",
        "parallel.num_threads=2",
    )
    golden.check(answers(chunked, golden.asks))


def test_preemption_changes_no_bit(golden: Golden) -> None:
    tiny = engine(
        *golden.precision,
        "model.max_model_len=384",
        "cache.num_blocks=26",
        "scheduler.admission_growth_tokens=0",
    )
    golden.check(answers(tiny, golden.asks))
    assert tiny.report().num_preemptions > 0


def test_a_pair_of_workers_answers_as_one_alone(golden: Golden) -> None:
    with pair_house(both=(*golden.precision, "scheduler.max_num_seqs=64")) as pair:
        golden.check(pair.house.complete(pair.split, golden.asks))
        some = golden.first(NUM_COMBINED)
        some.check(pair.house.complete(pair.combined, some.asks, cache_salt="combined"))
        pair.check_whole()


@pytest.mark.slow
def test_a_worker_in_combined_mode_answers_every_request_as_alone(golden: Golden) -> None:
    with pair_house(both=(*golden.precision, "scheduler.max_num_seqs=64")) as pair:
        golden.check(pair.house.complete(pair.combined, golden.asks))
        pair.check_whole()
