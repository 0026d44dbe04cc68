"""Beam search: the same beams as a plain search finds, whatever happens to workers meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from fakes_house import House, Texts, house
from fakes_told import Json, whole_completion
from fakes_worker import Trap

from core.request import TokenLogprobs
from router.life.beams import Beam, BeamRules, Beams

END = 0
VOCABULARY = range(4)
Model = Callable[[tuple[int, ...]], dict[int, float]]
"""Log-probabilities of the next token."""


def random_model(seed: int) -> Model:
    def model(token_ids: tuple[int, ...]) -> dict[int, float]:
        rng = random.Random(f"{seed} {token_ids}")
        weights = [rng.random() ** 3 + 1e-3 for _ in VOCABULARY]
        return {t: math.log(w / sum(weights)) for t, w in zip(VOCABULARY, weights, strict=True)}

    return model


def searched(model: Model, rules: BeamRules) -> list[Beam]:
    beams = Beams(rules)
    while not beams.done:
        beams.advance([best_of(model, beam, beams.num_candidates) for beam in beams.active])
    return beams.best()


def best_of(model: Model, beam: Beam, count: int) -> TokenLogprobs:
    best = sorted(model(beam.token_ids).items(), key=lambda item: -item[1])[:count]
    return TokenLogprobs(best[0][1], tuple(best))


def score(token_ids: tuple[int, ...], total: float, rules: BeamRules) -> float:
    length = rules.num_prompt_tokens + len([t for t in token_ids if t != END])
    return float(total / length**rules.length_penalty)


def total_of(model: Model, token_ids: tuple[int, ...]) -> float:
    return sum(model(token_ids[:i])[t] for i, t in enumerate(token_ids))


def plainly(model: Model, rules: BeamRules) -> list[tuple[int, ...]]:
    """The same search without an early end, by its definition."""
    active: list[tuple[int, ...]] = [()]
    complete: list[tuple[int, ...]] = []

    def rank(token_ids: tuple[int, ...]) -> float:
        return -score(token_ids, total_of(model, token_ids), rules)

    for _ in range(rules.max_tokens):
        longer = []
        for beam in active:
            best = sorted(VOCABULARY, key=lambda t, beam=beam: -model(beam)[t])  # type: ignore[misc]
            longer += [(*beam, t) for t in best[: 2 * rules.width]]
        complete += [beam for beam in longer if beam[-1] == END]
        active = sorted([b for b in longer if b[-1] != END], key=rank)[: rules.width]
    return sorted(complete + active, key=rank)[: rules.width]


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.5, -1.0])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_an_early_end_changes_nothing(width: int, length_penalty: float) -> None:
    for seed in range(20):
        rules = BeamRules(width, 7, 3, frozenset({END}), length_penalty)
        found = [beam.token_ids for beam in searched(random_model(seed), rules)]
        assert found == plainly(random_model(seed), rules)


def test_a_search_as_wide_as_the_tree_finds_the_best_answers_of_all() -> None:
    for seed in range(5):
        model, rules = random_model(seed), BeamRules(64, 4, 2, frozenset({END}))
        endless = [t for t in VOCABULARY if t != END]
        answers = [
            (*begin, *end)
            for length in range(4)
            for begin in itertools.product(endless, repeat=length)
            for end in ([(END,)] if length < 3 else [(t,) for t in VOCABULARY])
        ]
        answers.sort(key=lambda ids: -score(ids, total_of(model, ids), rules))
        assert [beam.token_ids for beam in searched(model, rules)][:10] == answers[:10]


def test_early_stopping_ends_with_as_many_complete_beams_as_the_search_is_wide() -> None:
    rules = BeamRules(2, 50, 1, frozenset({END}), 1.0, early_stopping=True)
    found = searched(lambda _: {1: math.log(0.6), END: math.log(0.4)}, rules)
    assert [beam.token_ids for beam in found] == [(1, END), (END,)]


def test_ignored_ends_end_nothing() -> None:
    found = searched(random_model(1), BeamRules(2, 5, 1, frozenset()))
    assert [len(beam.token_ids) for beam in found] == [5, 5]


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)
            for worker in (*h.prefill, *h.decode):
                await worker.until(lambda w: not w.num_open)
            assert not h.kv.open

    asyncio.run(run())


BEAMS: Json = {
    "prompt": list(range(100, 140)),
    "max_tokens": 4,
    "n": 2,
    "best_of": 3,
    "seed": 1,
    "use_beam_search": True,
    "logprobs": 1,
    "prompt_logprobs": 1,
    "return_token_ids": True,
}


def test_a_dead_worker_costs_a_step_and_changes_no_beam(texts: Texts) -> None:
    trap = Trap()

    async def test(h: House) -> None:
        undisturbed = await whole_completion(h, **BEAMS)
        assert [len(c["token_ids"]) for c in undisturbed.choices.values()] == [4, 4]
        assert undisturbed.beside["usage"]["completion_tokens"] == 8
        trap.position = 0
        assert await whole_completion(h, **BEAMS) == undisturbed
        assert trap.victim is not None
        await h.restart(trap.victim)

    in_house(texts, test, prefill=2, trap=trap)


def test_every_beam_is_cancelled_when_the_client_leaves(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        asking = asyncio.create_task(whole_completion(h, **BEAMS))
        await h.p.until(lambda w: len(w.attempts) == 1)
        asking.cancel()
        await h.p.until(lambda w: len(w.cancels) == 1)

    in_house(texts, test)


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": 0.7},
        {"top_p": 0.5},
        {"top_k": 5},
        {"min_p": 0.1},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 1.0},
        {"repetition_penalty": 1.1},
        {"logit_bias": {"5": 1}},
        {"bad_words": ["x"]},
        {"allowed_token_ids": [5]},
        {"min_tokens": 2},
        {"stop": "x"},
        {"stop_token_ids": [5]},
        {"best_of": 33},
        {"length_penalty": 11.0},
    ],
)
def test_what_a_search_cannot_keep_is_refused(texts: Texts, field: Json) -> None:
    async def test(h: House) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await whole_completion(h, **(BEAMS | field))
        assert caught.value.param == next(iter(field))

    in_house(texts, test)
