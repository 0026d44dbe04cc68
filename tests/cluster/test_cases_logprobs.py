"""Log-probabilities of the real model: none is lost between P and D, for any choice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from fakes_cases import CaseHouse, Json, case_house, events_of, settings
from fakes_real_house import Front

LOGPROB_TOLERANCE = 1e-3
NUM_BEST = 4
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def house() -> Iterator[CaseHouse]:
    with case_house(settings("default", "model.max_model_len=512")) as made:
        yield made


@pytest.fixture(scope="module")
def combined(house: CaseHouse) -> Front:
    front = house.add_front("router.mode=combined")
    house.run(front.until_connected(2))
    return front


class Told(NamedTuple):
    """What is told of one token; `best` are the log-probabilities of the best, in order."""

    token: str
    logprob: float
    best: list[float]


def body(**fields: object) -> Json:
    message = {"role": "user", "content": "Name a colour, any colour at all."}
    return {
        "messages": [message],
        "max_tokens": NUM_TOKENS,
        "n": 3,
        "temperature": 0.9,
        "seed": 11,
        "logprobs": True,
        "top_logprobs": NUM_BEST,
        "ignore_eos": True,
    } | fields


async def told(front: Front, fields: Json, salt: str) -> list[list[Told]]:
    """What is told of the tokens of each choice, streamed or not."""
    fields = fields | {"model": front.model, "cache_salt": salt}
    response = await front.http.post("/v1/chat/completions", json=fields)
    assert response.status_code == 200, response.text
    events = events_of(response) if fields.get("stream") else [response.json()]
    gathered: dict[int, list[Told]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        for entry in (choice["logprobs"] or {"content": []})["content"]:
            best = [other["logprob"] for other in entry["top_logprobs"]]
            one = Told(entry["token"], entry["logprob"], best)
            gathered.setdefault(choice["index"], []).append(one)
    return [gathered[index] for index in sorted(gathered)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_log_probabilities_of_every_choice_are_those_of_combined_mode(
    house: CaseHouse, combined: Front, stream: bool, temperature: float
) -> None:
    """Case 16. The first token's too, and those of choices after the first."""
    fields = body(stream=stream, temperature=temperature)

    async def test() -> None:
        split = await told(house.router, fields, "split")
        whole = await told(combined, fields, "whole")
        assert [len(choice) for choice in split] == [NUM_TOKENS] * 3
        for choice, expected in zip(split, whole, strict=True):
            assert [t.token for t in choice] == [t.token for t in expected]
            for one, right in zip(choice, expected, strict=True):
                assert one.logprob == pytest.approx(right.logprob, abs=LOGPROB_TOLERANCE)
                assert one.best == pytest.approx(right.best, abs=LOGPROB_TOLERANCE)
                assert len(one.best) == NUM_BEST and one.best == sorted(one.best, reverse=True)
        texts = {"".join(t.token for t in choice) for choice in split}
        assert len(texts) == (1 if temperature == 0 else 3)

    house.run(test())


def test_a_first_token_that_ends_the_answer_has_its_log_probability(house: CaseHouse) -> None:
    """Cases 14 and 16. The bias that forces the end is not part of what is told."""

    async def test() -> None:
        fields = body(n=2, logit_bias={"2": 100}, ignore_eos=False)
        for choice in await told(house.router, fields, "end"):
            assert [t.token for t in choice] == ["<|im_end|>"]
            assert len(choice[0].best) == NUM_BEST

    house.run(test())
