"""The sampler's rules one by one, and all together against a slow reference."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from reference_sampler import choose, log_probabilities

from core.request import SamplingParams
from engine.sampler import NonFiniteLogitsError, SampleRow, TokenSampler
from engine.token_history import TokenHistory

VOCAB = 1000
MakeSampler = Callable[[int], TokenSampler]
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


def row_of(
    params: SamplingParams,
    *,
    choice: int = 0,
    position: int = 0,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    logits_row: int = 0,
) -> SampleRow:
    history = TokenHistory(prompt, output)
    return SampleRow(params, choice, position, history, logits_row, eos_token_ids=(2,))


def token_of(make_sampler: MakeSampler, logits: list[float], row: SampleRow) -> int:
    (sampled,) = make_sampler(len(logits)).sample(torch.tensor([logits]), [row])
    return sampled.token_id


def tokens_drawn(
    make_sampler: MakeSampler, logits: list[float], params: SamplingParams, num_draws: int = 200
) -> set[int]:
    rows = [row_of(params, position=position) for position in range(num_draws)]
    sampled = make_sampler(len(logits)).sample(torch.tensor([logits]), rows)
    return {s.token_id for s in sampled}


def test_nothing_to_sample_is_nothing_sampled(make_sampler: MakeSampler) -> None:
    assert make_sampler(4).sample(torch.empty(0, 4), []) == []


def test_greedy_takes_the_best_token_and_the_lowest_id_of_equals(make_sampler: MakeSampler) -> None:
    assert token_of(make_sampler, [0.0, 3.0, 1.0, 3.0], row_of(GREEDY)) == 1
    rows = [row_of(GREEDY, logits_row=i) for i in range(8)]
    for sampled in make_sampler(5000).sample(torch.zeros(8, 5000), rows):
        assert sampled.token_id == 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=8, temperature=1e-6),
        SamplingParams(max_tokens=8, top_k=1),
        SamplingParams(max_tokens=8, top_p=0.0),
        SamplingParams(max_tokens=8, min_p=1.0),
        SamplingParams(max_tokens=8, temperature=0.0, top_k=3, top_p=0.5, min_p=0.1),
    ],
)
def test_the_narrowest_filters_are_greedy(
    make_sampler: MakeSampler, params: SamplingParams
) -> None:
    assert tokens_drawn(make_sampler, [0.5, 2.0, 1.9, -1.0], params) == {1}


def test_top_k_keeps_that_many_and_breaks_ties_by_id(make_sampler: MakeSampler) -> None:
    params = SamplingParams(max_tokens=8, temperature=5.0, top_k=3)
    assert tokens_drawn(make_sampler, [1.0, 2.0, 1.0, 1.0, 0.9], params) == {0, 1, 2}


def test_top_p_keeps_the_token_that_crosses_the_mass(make_sampler: MakeSampler) -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    for top_p, kept in [(0.4, {0}), (0.7, {0, 1}), (0.9, {0, 1, 2}), (0.99, {0, 1, 2, 3})]:
        assert tokens_drawn(make_sampler, logits, SamplingParams(max_tokens=8, top_p=top_p)) == kept


def test_top_p_counts_the_mass_that_top_k_left(make_sampler: MakeSampler) -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    # Of the first three: 0.44, 0.33, 0.22. Of all: 0.4, 0.3, 0.2.
    params = SamplingParams(max_tokens=8, top_k=3, top_p=0.75)
    assert tokens_drawn(make_sampler, logits, params) == {0, 1}
    assert tokens_drawn(make_sampler, logits, replace(params, top_k=0)) == {0, 1, 2}


def test_min_p_is_relative_to_the_best_token(make_sampler: MakeSampler) -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert tokens_drawn(make_sampler, logits, SamplingParams(max_tokens=8, min_p=0.25)) == {0, 1, 2}


def test_a_bias_can_force_and_forbid(make_sampler: MakeSampler) -> None:
    logits = [0.0, 5.0, 1.0]
    assert token_of(make_sampler, logits, row_of(replace(GREEDY, logit_bias=((0, 100.0),)))) == 0
    assert token_of(make_sampler, logits, row_of(replace(GREEDY, logit_bias=((1, -100.0),)))) == 2


def test_ids_outside_the_vocabulary_have_no_effect(make_sampler: MakeSampler) -> None:
    params = replace(GREEDY, logit_bias=((3, 100.0),), stop_token_ids=(77,), min_tokens=4)
    assert token_of(make_sampler, [0.0, 5.0, 1.0], row_of(params)) == 1


def test_frequency_and_presence_penalties_look_at_the_output_only(
    make_sampler: MakeSampler,
) -> None:
    logits = [3.0, 2.9, 0.0]
    once = replace(GREEDY, presence_penalty=0.5)
    assert token_of(make_sampler, logits, row_of(once, prompt=(0, 0))) == 0
    assert token_of(make_sampler, logits, row_of(once, output=(0,))) == 1
    each = replace(GREEDY, frequency_penalty=0.06)
    assert token_of(make_sampler, logits, row_of(each, output=(0,))) == 0
    assert token_of(make_sampler, logits, row_of(each, output=(0, 0))) == 1


def test_the_repetition_penalty_looks_at_prompt_and_output(make_sampler: MakeSampler) -> None:
    params = replace(GREEDY, repetition_penalty=2.0)
    assert token_of(make_sampler, [3.0, 2.0, 0.0], row_of(params, prompt=(0,))) == 1
    assert token_of(make_sampler, [3.0, 2.0, 0.0], row_of(params, output=(0,))) == 1
    assert token_of(make_sampler, [-1.0, -1.5, -9.0], row_of(params, prompt=(0,))) == 1


def test_min_tokens_keep_eos_and_stop_tokens_out(make_sampler: MakeSampler) -> None:
    params = replace(GREEDY, min_tokens=2, stop_token_ids=(1,))
    logits = [0.0, 4.0, 5.0, 1.0]
    tokens = [
        token_of(make_sampler, logits, row_of(params, position=position)) for position in range(4)
    ]
    assert tokens == [3, 3, 2, 2]


def test_log_probabilities_are_the_models_own(make_sampler: MakeSampler) -> None:
    logits = [1.0, 3.0, 2.0, 0.0]
    params = SamplingParams(
        max_tokens=8, temperature=0.0, logprobs=2, logit_bias=((3, 50.0),), repetition_penalty=1.5
    )
    (sampled,) = make_sampler(4).sample(torch.tensor([logits]), [row_of(params, output=(1,))])
    expected = log_probabilities(np.array(logits))
    assert sampled.token_id == 3
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprob == pytest.approx(expected[3], abs=1e-6)
    assert [token_id for token_id, _ in sampled.logprobs.top] == [1, 2]
    assert [p for _, p in sampled.logprobs.top] == pytest.approx(expected[[1, 2]], abs=1e-6)


def test_each_row_gets_as_many_alternatives_as_it_asked_for(make_sampler: MakeSampler) -> None:
    wishes = [None, 0, 1, 3, 10]
    rows = [row_of(replace(GREEDY, logprobs=wish)) for wish in wishes]
    sampled = make_sampler(4).sample(torch.tensor([[1.0, 1.0, 2.0, 1.0]]), rows)
    assert sampled[0].logprobs is None
    tops = [[t for t, _ in s.logprobs.top] for s in sampled[1:] if s.logprobs is not None]
    assert tops == [[], [2], [2, 0, 1], [2, 0, 1, 3]]


def test_choices_share_a_row_of_logits_and_differ(make_sampler: MakeSampler) -> None:
    params = SamplingParams(max_tokens=8, seed=5)
    logits = torch.zeros(2, VOCAB)
    logits[1, 0] = 50.0
    rows = [row_of(params, choice=choice) for choice in range(8)]
    rows.append(row_of(params, logits_row=1))
    tokens = [s.token_id for s in make_sampler(VOCAB).sample(logits, rows)]
    assert len(set(tokens[:8])) == 8
    assert tokens[8] == 0


def test_the_models_logits_are_left_as_they_were(make_sampler: MakeSampler) -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    params = SamplingParams(
        max_tokens=8, logit_bias=((1, 5.0),), presence_penalty=1.0, min_tokens=3, top_p=0.5
    )
    rows = [row_of(params, output=(4, 5), logits_row=i) for i in range(2)]
    make_sampler(VOCAB).sample(logits, rows)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(max_tokens=8), SamplingParams(max_tokens=8, top_p=0.5)]
)
def test_rows_without_a_finite_maximum_are_named(
    make_sampler: MakeSampler, bad: float, params: SamplingParams
) -> None:
    logits = torch.zeros(3, VOCAB)
    logits[1, 7] = bad
    rows = [row_of(params, logits_row=i) for i in range(3)]
    with pytest.raises(NonFiniteLogitsError) as caught:
        make_sampler(VOCAB).sample(logits, rows)
    assert caught.value.rows == (1,)


def test_forbidden_tokens_are_never_drawn(make_sampler: MakeSampler) -> None:
    logits = [-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]
    for params in (
        SamplingParams(max_tokens=8, temperature=100.0),
        SamplingParams(max_tokens=8, temperature=100.0, top_p=0.999),
        SamplingParams(max_tokens=8, temperature=100.0, top_k=4),
    ):
        assert tokens_drawn(make_sampler, logits, params) == {1, 3}


def test_no_token_completes_a_bad_word(make_sampler: MakeSampler) -> None:
    params = replace(GREEDY, bad_words=((1,), (4, 5, 3)))
    logits = [0.0, 9.0, 1.0, 5.0, 2.0, 2.5]
    assert token_of(make_sampler, logits, row_of(params)) == 3, "a beginning is no word"
    assert token_of(make_sampler, logits, row_of(params, output=(5,))) == 3
    assert token_of(make_sampler, logits, row_of(params, prompt=(4,), output=(5,))) == 3
    assert token_of(make_sampler, logits, row_of(params, output=(0, 4, 5))) == 5
    assert token_of(make_sampler, logits, row_of(params, output=(4, 5, 0))) == 3


def test_words_of_single_tokens_need_no_history(make_sampler: MakeSampler) -> None:
    params = replace(GREEDY, bad_words=((1,), (3,)))
    assert not params.needs_history and params.changes_logits
    row = row_of(params)._replace(history=None)
    assert token_of(make_sampler, [0.0, 9.0, 1.0, 5.0], row) == 2


def test_only_allowed_tokens_are_drawn(make_sampler: MakeSampler) -> None:
    params = SamplingParams(max_tokens=8, temperature=50.0, allowed_token_ids=(0, 4, 77))
    assert tokens_drawn(make_sampler, [0.0, 9.0, 1.0, 5.0, 2.0], params) == {0, 4}
    biased = replace(params, temperature=0.0, logit_bias=((1, 100.0), (4, 1.0)))
    assert token_of(make_sampler, [0.0, 9.0, 1.0, 5.0, 2.0], row_of(biased)) == 4


def test_what_is_forbidden_is_not_allowed_either(make_sampler: MakeSampler) -> None:
    params = replace(GREEDY, allowed_token_ids=(0, 1, 2), bad_words=((1,), (5, 0)), min_tokens=4)
    logits = [3.0, 9.0, 4.0, 5.0]
    assert token_of(make_sampler, logits, row_of(params)) == 0, "2 ends the output"
    assert token_of(make_sampler, logits, row_of(params, position=4)) == 2
    allowed = replace(params, allowed_token_ids=(0, 1, 3))
    assert token_of(make_sampler, logits, row_of(allowed, output=(5,))) == 3


def test_log_probabilities_know_nothing_of_what_is_forbidden(make_sampler: MakeSampler) -> None:
    logits = [1.0, 3.0, 2.0, 0.0]
    params = replace(GREEDY, logprobs=2, allowed_token_ids=(3,), bad_words=((1,),))
    (sampled,) = make_sampler(4).sample(torch.tensor([logits]), [row_of(params)])
    expected = log_probabilities(np.array(logits))
    assert sampled.token_id == 3 and sampled.logprobs is not None
    assert sampled.logprobs.logprob == pytest.approx(expected[3], abs=1e-6)
    assert [token_id for token_id, _ in sampled.logprobs.top] == [1, 2]


def random_row(rng: random.Random, logits_row: int) -> SampleRow:
    """Anything a client may ask for, in any combination."""
    output = rng.choices(range(VOCAB), k=rng.randrange(40))
    params = SamplingParams(
        max_tokens=64,
        temperature=rng.choice([0.0, 0.3, 1.0, 2.5]),
        top_k=rng.choice([0, 0, 1, 7, 100, 600, 5000]),
        top_p=rng.choice([1.0, 1.0, 0.1, 0.8, 0.99]),
        min_p=rng.choice([0.0, 0.0, 0.02, 0.5]),
        presence_penalty=rng.choice([0.0, 0.0, -1.0, 1.5]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.5, 0.7]),
        repetition_penalty=rng.choice([1.0, 1.0, 0.8, 1.3]),
        logit_bias=rng.choice([(), (), ((3, 4.0), (900, -7.5))]),
        logprobs=rng.choice([None, 0, 5]),
        seed=rng.getrandbits(64),
        min_tokens=rng.choice([0, 0, 10]),
        stop_token_ids=rng.choice([(), (11, 12)]),
        bad_words=rng.choice([(), ((5,), (7, 8)), random_words(rng, output)]),
        allowed_token_ids=rng.choice([(), (), tuple(range(0, VOCAB, 3))]),
    )
    return SampleRow(
        params,
        choice=rng.randrange(4),
        position=rng.randrange(20),
        history=TokenHistory(
            rng.choices(range(VOCAB), k=rng.randrange(40)),
            output,
        ),
        logits_row=logits_row,
        eos_token_ids=(2,),
    )


def random_words(rng: random.Random, output: list[int]) -> tuple[tuple[int, ...], ...]:
    """Words of which the output has all but the last token."""
    begun = tuple(output[-rng.randrange(1, 4) :])
    return tuple((*begun, last) for last in rng.sample(range(VOCAB), k=VOCAB // 2))


@pytest.mark.parametrize("flatness", ["peaked", "flat", "tied"])
def test_mixed_batches_agree_with_the_slow_reference(
    make_sampler: MakeSampler, flatness: str
) -> None:
    rng = random.Random(flatness)
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(40, VOCAB, generator=generator) * (0.5 if flatness == "flat" else 4.0)
    if flatness == "tied":
        logits = (logits * 2).round() / 2
    for _ in range(4):
        rows = [random_row(rng, rng.randrange(40)) for _ in range(48)]
        sampled = make_sampler(VOCAB).sample(logits, rows)
        exact = [logits[row.logits_row].double().numpy() for row in rows]
        assert [s.token_id for s in sampled] == [
            choose(own, row) for own, row in zip(exact, rows, strict=True)
        ]
        for result, own, row in zip(sampled, exact, rows, strict=True):
            assert (result.logprobs is None) == (row.params.logprobs is None)
            if result.logprobs is not None:
                expected = log_probabilities(own)
                order = np.argsort(-own, kind="stable")[: row.params.logprobs]
                assert [t for t, _ in result.logprobs.top] == order.tolist()
                reported = [(result.token_id, result.logprobs.logprob), *result.logprobs.top]
                assert [p for _, p in reported] == pytest.approx(
                    [expected[t] for t, _ in reported], abs=1e-5
                )
