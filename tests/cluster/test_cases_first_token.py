"""Answers that end with their first token: the decode worker isn't needed, and nothing waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes_byte_model import EOS, token_id
from fakes_cases import CaseHouse, case_house, events_of, post, settings, some_tokens, together

from core import metric_names as names
from core.request import Phase

BLOCK = 16
FORCED = token_id("A")
CERTAIN = 100.0


@pytest.fixture(scope="module")
def house(model: Path) -> Iterator[CaseHouse]:
    with case_house(settings(model)) as made:
        yield made


ENDINGS: dict[str, tuple[dict[str, Any], str]] = {
    "end of text": ({"max_tokens": 50, "logit_bias": {str(EOS): CERTAIN}}, "stop"),
    "stop token": (
        {"max_tokens": 50, "logit_bias": {str(FORCED): CERTAIN}, "stop_token_ids": [FORCED]},
        "stop",
    ),
    "stop string": ({"max_tokens": 50, "logit_bias": {str(FORCED): CERTAIN}, "stop": "A"}, "stop"),
    "one token": ({"max_tokens": 1}, "length"),
    "three choices of one token": ({"max_tokens": 1, "n": 3, "temperature": 1.0}, "length"),
    "two choices": ({"max_tokens": 50, "n": 2, "logit_bias": {str(EOS): CERTAIN}}, "stop"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("length", [3, 2 * BLOCK, 1100])
@pytest.mark.parametrize("ending", ENDINGS)
def test_an_answer_that_ends_with_its_first_token_is_finished(
    house: CaseHouse, ending: str, length: int, stream: bool
) -> None:
    """Case 14. Neither lease nor block is left, and no transfer failed."""
    fields, reason = ENDINGS[ending]

    async def test() -> None:
        response = await post(house.router, some_tokens(length), stream=stream, **fields)
        assert response.status_code == 200
        events = events_of(response) if stream else [response.json()]
        reasons = [c["finish_reason"] for event in events for c in event["choices"]]
        assert [r for r in reasons if r] == [reason] * fields.get("n", 1)
        await house.check_whole()
        assert await house.metric(names.KV_HANDOFF_FAILURES_TOTAL) == 0

    house.run(test())


def test_two_hundred_answers_that_end_at_once_are_each_prefilled_once(house: CaseHouse) -> None:
    """Case 14. However D's word that there is nothing to pull may overtake P's tokens."""
    fields = {"max_tokens": 50, "logit_bias": {str(EOS): CERTAIN}, "include_timings": True}

    async def test() -> None:
        moved = house.d.transferred.num_transfers
        asks = [house.ask(some_tokens(20 + i, seed=i), **fields) for i in range(200)]
        for answer in await together(asks):
            assert answer["usage"]["completion_tokens"] == 1
            assert answer["tandem"]["num_attempts"] == 1
        await house.check_whole()
        assert house.d.transferred.num_transfers == moved
        assert await house.metric(names.KV_HANDOFF_FAILURES_TOTAL) == 0

    house.run(test())


def test_a_choice_that_ends_at_once_leaves_the_others_to_go_on(house: CaseHouse) -> None:
    """Case 14. Of many choices some draw the end of text first."""
    fields = {
        "temperature": 1.0,
        "seed": 3,
        "n": 24,
        "max_tokens": 9,
        "logit_bias": {str(EOS): 10.0},
    }

    async def test() -> None:
        answer = await house.ask(some_tokens(50, seed=8), **fields)
        lengths = [len(c["logprobs"]["tokens"]) for c in answer["choices"]]
        assert 1 in lengths and 9 in lengths
        for choice, length in zip(answer["choices"], lengths, strict=True):
            ended = choice["logprobs"]["tokens"][-1] == "</s>"
            assert choice["finish_reason"] == ("stop" if ended else "length")
            assert ended or length == 9
        assert answer["usage"]["completion_tokens"] == sum(lengths)

    house.run(test())


def test_one_token_is_served_while_there_is_no_decode_worker(model: Path) -> None:
    """Case 14. D isn't there at all."""
    with case_house(settings(model), decode=0) as alone:
        assert [worker.role for worker in alone.workers] == [Phase.PREFILL]
        for n in (1, 4):
            asking = alone.ask(some_tokens(40), max_tokens=1, n=n, temperature=1.0)
            assert alone.run(asking)["usage"]["completion_tokens"] == n
