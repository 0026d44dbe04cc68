"""The cases that a client sees, over HTTP and over gRPC, told once for both.

Other files go deeper into each over HTTP; here it is the same answers and the same errors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis_server
from fakes_byte_model import EOS, MAX_MODEL_LEN, VOCAB_SIZE, token_id
from fakes_cases import CaseHouse, case_house, settings, some_tokens, together
from fakes_protocols import PROTOCOLS, Client
from fakes_real_house import Front

from core.clock import MonotonicClock

BLOCK = 16
CERTAIN = 100.0
TOLERANCE = 1e-3
"""Of log-probabilities: prefill and decode sum in different orders."""


@pytest.fixture(scope="module")
def house(model: Path) -> Iterator[CaseHouse]:
    with case_house(settings(model)) as made:
        yield made


@pytest.fixture(scope="module")
def combined(house: CaseHouse) -> Front:
    """A second router, which sends requests whole to D."""
    front = house.add_front("router.mode=combined")
    house.run(front.until_connected(2))
    return front


@pytest.fixture(params=sorted(PROTOCOLS))
def client(request: pytest.FixtureRequest) -> Client:
    return PROTOCOLS[request.param]


def salt(client: Client, name: str) -> str:
    """Keeps what one protocol asked out of the other's cache."""
    return f"{type(client).__name__} {name}"


ENDINGS: dict[str, tuple[dict[str, Any], str]] = {
    "end of text": ({"logit_bias": {str(EOS): CERTAIN}}, "stop"),
    "stop string": ({"logit_bias": {str(token_id("A")): CERTAIN}, "stop": ["A"]}, "stop"),
    "one token": ({"max_tokens": 1}, "length"),
    "two choices": ({"n": 2, "logit_bias": {str(EOS): CERTAIN}}, "stop"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_answer_that_ends_with_its_first_token_is_finished(
    house: CaseHouse, client: Client, ending: str
) -> None:
    """Case 14. D isn't needed, and nobody waits for it."""
    fields, reason = ENDINGS[ending]

    async def test() -> None:
        given = {"max_tokens": 50, "temperature": 0.0} | fields
        outcome = await client.ask(house.router, some_tokens(2 * BLOCK), **given)
        assert outcome.status == 200
        assert [choice.reasons for choice in outcome.choices] == [[reason]] * len(outcome.choices)
        assert outcome.completion_tokens == len(outcome.choices)
        assert [choice.text for choice in outcome.choices if reason == "stop"] == [
            "" for _ in outcome.choices if reason == "stop"
        ]
        await house.check_whole()

    house.run(test())


def test_the_prefill_leg_of_one_token_keeps_all_that_was_asked(
    house: CaseHouse, client: Client
) -> None:
    """Case 15. `min_tokens` above one token, two choices and the usage at the end."""

    async def test() -> None:
        outcome = await client.ask(
            house.router, some_tokens(40), min_tokens=5, max_tokens=8, n=2, seed=4
        )
        assert outcome.status == 200, outcome
        assert len(outcome.choices) == 2
        for choice in outcome.choices:
            assert 5 <= len(choice.tokens) <= 8
            assert len(choice.reasons) == 1
        assert outcome.completion_tokens == sum(len(c.tokens) for c in outcome.choices)
        assert outcome.prompt_tokens == 40

    house.run(test())


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_log_probabilities_are_those_of_combined_mode(
    house: CaseHouse, combined: Front, client: Client, temperature: float
) -> None:
    """Case 16. The first token's too, and those of choices after the first."""
    fields: dict[str, Any] = {
        "n": 3,
        "max_tokens": 9,
        "seed": 5,
        "temperature": temperature,
        "ignore_eos": True,
    }

    async def test() -> None:
        prompt = some_tokens(50, seed=12)
        split = await client.ask(house.router, prompt, cache_salt=salt(client, "split"), **fields)
        whole = await client.ask(combined, prompt, cache_salt=salt(client, "whole"), **fields)
        for got, expected in zip(split.choices, whole.choices, strict=True):
            assert got.tokens == expected.tokens
            assert len(got.logprobs) == len(got.tokens) == 9
            assert got.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)

    house.run(test())


def test_both_protocols_give_one_answer(house: CaseHouse) -> None:
    """Cases 16 and 18: tokens, text, log-probabilities and one finish reason a choice."""
    fields: dict[str, Any] = {"n": 3, "max_tokens": 9, "seed": 6, "temperature": 0.8}

    async def test() -> None:
        prompt = some_tokens(50, seed=13)
        first, second = [
            await client.ask(house.router, prompt, cache_salt=salt(client, "one"), **fields)
            for client in PROTOCOLS.values()
        ]
        for got, expected in zip(first.choices, second.choices, strict=True):
            assert (got.tokens, got.text) == (expected.tokens, expected.text)
            assert got.reasons == expected.reasons and len(got.reasons) == 1
            assert got.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)

    house.run(test())


@pytest.mark.parametrize("length", [1, BLOCK, BLOCK + 1, 200])
def test_cached_tokens_are_the_prefill_worker_s_hits(
    house: CaseHouse, client: Client, length: int
) -> None:
    """Case 20. None when cold; all full blocks before the last token when warm."""

    async def test() -> None:
        given: dict[str, Any] = {"max_tokens": 3, "cache_salt": salt(client, f"hits {length}")}
        prompt = some_tokens(length, seed=14)
        assert (await client.ask(house.router, prompt, **given)).cached_tokens == 0
        warm = await client.ask(house.router, prompt, **given)
        assert warm.cached_tokens == (length - 1) // BLOCK * BLOCK
        assert warm.prompt_tokens == length

    house.run(test())


def test_the_time_to_the_first_token_is_the_client_s_queue_and_all(
    house: CaseHouse, client: Client
) -> None:
    """Case 21. A request that waits behind a held step was not served fast; and the phases add up.

    What the client's own clock saw bounds it from above, the time that the step was held from
    below.
    """

    async def test() -> None:
        clock = MonotonicClock()
        house.p.steps.hold()
        begun = clock.now()
        fields: dict[str, Any] = {"max_tokens": 4, "cache_salt": salt(client, "ttft")}
        asking = asyncio.create_task(client.ask(house.router, some_tokens(64, seed=15), **fields))
        await house.p.steps.until_held()
        held_from = clock.now()
        await house.router.http.get("/health")
        held_s = clock.now() - held_from
        house.p.steps.release()
        outcome = await asking
        seen_s = clock.now() - begun
        timings = outcome.timings
        parts = timings["queue_s"] + timings["tokenize_s"] + timings["prefill_s"]
        assert parts == pytest.approx(timings["ttft_s"], rel=0.05)
        assert held_s <= timings["ttft_s"] <= seen_s
        assert (
            timings["ttft_s"] + timings["handoff_gap_s"]
            <= timings["total_s"] + 1e-6
            <= seen_s + 1e-6
        )

    house.run(test())


FAULTS: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "prompt too long": ({"prompt": MAX_MODEL_LEN}, 400, "context_length_exceeded", "prompt"),
    "output too long": ({"max_tokens": MAX_MODEL_LEN}, 400, "context_length_exceeded", "prompt"),
    "empty prompt": ({"prompt": 0}, 400, "invalid_request", "prompt"),
    "unknown model": ({"model": "other"}, 404, "model_not_found", "model"),
    "too many stops": ({"stop": ["x"] * 17}, 400, "invalid_request", "stop"),
    "no choices": ({"n": 0}, 400, "invalid_request", "n"),
    "hot": ({"temperature": 2.5}, 400, "invalid_request", "temperature"),
    "too many log-probabilities": ({"logprobs": 21}, 400, "invalid_request", "logprobs"),
    "min over max": ({"min_tokens": 9, "max_tokens": 3}, 400, "invalid_request", "min_tokens"),
    "bias of no token": (
        {"logit_bias": {str(VOCAB_SIZE): 1.0}},
        400,
        "invalid_request",
        "logit_bias",
    ),
    "long salt": ({"cache_salt": "x" * 257}, 400, "invalid_request", "cache_salt"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_client_s_fault_has_one_code_and_one_field(
    house: CaseHouse, client: Client, name: str
) -> None:
    """Case 24. Whatever protocol it comes by."""
    fields, status, code, param = FAULTS[name]

    async def test() -> None:
        given = dict(fields)
        prompt = some_tokens(given.pop("prompt", 5))
        outcome = await client.ask(house.router, prompt, **given)
        assert (outcome.status, outcome.code, outcome.param) == (status, code, param)
        assert not outcome.choices

    house.run(test())


def test_without_a_worker_there_is_a_status_and_no_stream(model: Path, client: Client) -> None:
    """Case 25. The reason is told, too."""
    config = settings(model, "router.no_worker_timeout_s=0.1")
    with case_house(config, decode=0) as alone:
        outcome = alone.run(client.ask(alone.router, some_tokens(20), max_tokens=5))
        assert (outcome.status, outcome.code, outcome.num_events) == (503, "no_worker", 0)


def test_a_failure_midway_ends_a_stream_with_an_error(house: CaseHouse, client: Client) -> None:
    """Case 25. After the first token there is no status to be had any more, but an error."""

    async def test() -> None:
        house.d.steps.spoil(1)
        outcome = await client.ask(house.router, some_tokens(20, seed=16), max_tokens=5)
        assert outcome.error_after and outcome.code == "non_finite_logits"
        assert not outcome.choices[0].reasons
        await house.check_whole()

    house.run(test())


def test_requests_of_one_name_get_their_own_answers(house: CaseHouse, client: Client) -> None:
    """Case 26. Eight at once; inside, ids are ours."""
    prompts = [some_tokens(20 + i, seed=30 + i) for i in range(8)]

    async def test() -> None:
        fields: dict[str, Any] = {"max_tokens": 9, "temperature": 0.0}
        alone = [await client.ask(house.router, prompt, **fields) for prompt in prompts]
        asks = [client.ask(house.router, p, client_id="twin", **fields) for p in prompts]
        for got, expected in zip(await together(asks), alone, strict=True):
            assert got.client_id == "twin"
            assert got.choices[0].tokens == expected.choices[0].tokens

    house.run(test())


def test_serving_goes_on_while_redis_is_stopped(
    model: Path, redis_binary: redis_server.Binary
) -> None:
    """Case 27. It takes connections and answers nothing: every call has its deadline."""
    with redis_server.running(redis_binary) as server:
        config = settings(
            model,
            "state.backend=redis",
            f"state.redis_url={server.url}",
            "state.timeout_s=0.3",
            "worker.heartbeat_s=0.1",
            "router.no_worker_timeout_s=60",
        )
        with case_house(config) as house:
            fields: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0}
            prompt = some_tokens(30, seed=40)
            before = house.run(PROTOCOLS["http"].ask(house.router, prompt, **fields))
            server.pause()
            try:
                stopped_at = time.monotonic()
                while time.monotonic() - stopped_at < 2.0:  # several heartbeats and deadlines
                    for client in PROTOCOLS.values():
                        outcome = house.run(client.ask(house.router, prompt, **fields))
                        assert outcome.status == 200, outcome
                        assert outcome.choices[0].tokens == before.choices[0].tokens
                        assert outcome.timings["total_s"] < config.router.request_timeout_s / 10
            finally:
                server.resume()
