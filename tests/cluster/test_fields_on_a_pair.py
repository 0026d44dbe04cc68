"""What fields promise, kept by the real model on P and D, and on D alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fakes_real_house import CHUNK_TOKENS, Front, PairHouse, pair_house

from text.tokenizer import Tokenizer

PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital of"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def pair() -> Iterator[PairHouse]:
    with pair_house() as made:
        yield made


def choice_of(pair: PairHouse, front: Front, **fields: Any) -> Json:
    """The first choice of a completion."""
    body = {"model": front.model, "temperature": 0.0, "return_token_ids": True} | fields
    response = pair.house.loop.run(front.http.post("/v1/completions", json=body))
    assert response.status_code == 200, response.text
    choice: Json = response.json()["choices"][0]
    return choice


def fronts(pair: PairHouse) -> tuple[Front, Front]:
    return pair.split, pair.combined


def test_a_prompt_is_scored_as_the_same_tokens_were_when_they_came_out(pair: PairHouse) -> None:
    for front in fronts(pair):
        said = choice_of(pair, front, prompt=PROMPT, max_tokens=CHUNK_TOKENS, logprobs=2)
        token_ids = said["prompt_token_ids"] + said["token_ids"]
        scored = choice_of(
            pair, front, prompt=token_ids, max_tokens=0, echo=True, logprobs=2, prompt_logprobs=2
        )
        num_prompt = len(said["prompt_token_ids"])
        told = scored["logprobs"]
        assert told["tokens"][num_prompt:] == said["logprobs"]["tokens"]
        assert told["token_logprobs"][num_prompt:] == pytest.approx(
            said["logprobs"]["token_logprobs"], abs=1e-4
        )
        best = [list(top)[:1] for top in told["top_logprobs"][num_prompt:]]
        assert best == [[token] for token in said["logprobs"]["tokens"]], "greedy took the best"
        assert len(scored["prompt_logprobs"]) == len(token_ids)


def test_scores_have_the_same_bits_wherever_and_however_often_they_are_computed(
    pair: PairHouse,
) -> None:
    fields: Json = {"prompt": PROMPT * 6, "max_tokens": 2, "prompt_logprobs": 3}
    first, *others = [
        choice_of(pair, front, **fields)["prompt_logprobs"]
        for front in (*fronts(pair), *fronts(pair))
    ]
    assert len(first) > CHUNK_TOKENS
    assert all(other == first for other in others)
    pair.check_whole()


def test_bad_words_do_not_come_and_all_else_goes_on(pair: PairHouse, tokenizer: Tokenizer) -> None:
    told = []
    for front in fronts(pair):
        free = choice_of(pair, front, prompt=PROMPT, max_tokens=12)
        first = tokenizer.decode(free["token_ids"][:1])
        two = tokenizer.decode(free["token_ids"][1:3])
        answer = choice_of(pair, front, prompt=PROMPT, max_tokens=24, bad_words=[first, two])
        for word in (first, two):
            spelt = tokenizer.encode(word, False)
            width = len(spelt)
            came = [answer["token_ids"][i : i + width] for i in range(24)]
            assert spelt not in came
        told.append(answer["token_ids"])
    assert told[0] == told[1], "P and D apart say what D says alone"


def test_only_allowed_tokens_come(pair: PairHouse, tokenizer: Tokenizer) -> None:
    allowed = tokenizer.encode(" Germany is the capital of Berlin Spain Madrid .", False)
    for front in fronts(pair):
        for temperature in (0.0, 1.0):
            answer = choice_of(
                pair,
                front,
                prompt=PROMPT,
                max_tokens=12,
                allowed_token_ids=allowed,
                temperature=temperature,
                seed=3,
            )
            assert len(answer["token_ids"]) == 12 and set(answer["token_ids"]) <= set(allowed)


def test_the_best_of_several_is_the_likeliest(pair: PairHouse) -> None:
    fields: Json = {"prompt": PROMPT, "max_tokens": 8, "temperature": 1.0, "seed": 4}
    body = {"model": pair.split.model, "n": 4, "logprobs": 0} | fields
    response = pair.house.loop.run(pair.split.http.post("/v1/completions", json=body))
    means = {
        choice["text"]: sum(choice["logprobs"]["token_logprobs"])
        / len(choice["logprobs"]["token_logprobs"])
        for choice in response.json()["choices"]
    }
    best = choice_of(pair, pair.split, best_of=4, **fields)
    assert best["text"] == max(means, key=lambda text: means[text])


def test_one_beam_is_greedy_and_more_find_likelier_answers(pair: PairHouse) -> None:
    fields: Json = {"prompt": PROMPT, "max_tokens": 10, "logprobs": 0, "ignore_eos": True}

    def total(choice: Json) -> float:
        logprobs: list[float] = choice["logprobs"]["token_logprobs"]
        return sum(logprobs)

    for front in fronts(pair):
        greedy = choice_of(pair, front, **fields)
        one = choice_of(pair, front, use_beam_search=True, **fields)
        assert one["token_ids"] == greedy["token_ids"]
        assert total(one) == pytest.approx(total(greedy), abs=1e-3)
        best = choice_of(pair, front, use_beam_search=True, best_of=4, **fields)
        assert total(best) >= total(one) - 1e-3
    pair.check_whole()
