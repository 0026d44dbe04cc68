"""What `usage` calls cached: the prefill worker's own hits, nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes_byte_model import write_byte_model
from fakes_cases import CaseHouse, Json, case_house, check_same, settings, some_tokens
from fakes_golden import Ask
from fakes_real_house import Front

from core.request import SamplingParams

BLOCK = 16


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseHouse]:
    model = write_byte_model(tmp_path_factory.mktemp("byte-model"))
    with case_house(settings(model)) as made:
        yield made


@pytest.fixture(scope="module")
def combined(house: CaseHouse) -> Front:
    """A second router, which sends requests whole to D."""
    front = house.add_front("router.mode=combined")
    house.run(front.until_connected(2))
    return front


def cached(answer: Json) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


@pytest.mark.parametrize("length", [1, BLOCK, BLOCK + 1, 100, 1000])
def test_cached_tokens_are_what_the_prefill_worker_found(house: CaseHouse, length: int) -> None:
    """Case 20. None on a cold prompt; on a warm one all full blocks before the last token."""
    salt = f"length {length}"

    async def test() -> None:
        prompt = some_tokens(length)
        assert cached(await house.ask(prompt, max_tokens=4, cache_salt=salt)) == 0
        for fields in ({}, {"n": 2}, {"max_tokens": 1}):
            given = {"max_tokens": 4, "cache_salt": salt} | fields
            answer = await house.ask(prompt, **given)
            assert cached(answer) == (length - 1) // BLOCK * BLOCK
            assert answer["usage"]["prompt_tokens"] == length

    house.run(test())


def test_salts_do_not_share(house: CaseHouse) -> None:
    """Case 20. The same prompt under another salt is cold."""

    async def test() -> None:
        for salt in ("one", "other"):
            assert cached(await house.ask(some_tokens(64), max_tokens=2, cache_salt=salt)) == 0

    house.run(test())


def test_what_was_moved_or_decoded_is_not_cached(house: CaseHouse, combined: Front) -> None:
    """Case 20. D holds the first turn and its answer; P, whose hits count, the prompt alone."""
    greedy = SamplingParams(2 * BLOCK + 1, temperature=0.0, ignore_eos=True)
    prompt = tuple(some_tokens(4 * BLOCK, seed=900))

    async def turn(front: Front, token_ids: tuple[int, ...]) -> tuple[list[int], int]:
        answer = await front.complete(Ask("turn", token_ids, greedy), "turns")
        assert answer.usage is not None
        return answer.choices[0].token_ids, answer.usage.cached_tokens

    async def test() -> None:
        answered, num_cached = await turn(house.router, prompt)
        assert num_cached == 0
        longer = (*prompt, *answered, *some_tokens(BLOCK, seed=901))
        assert (await turn(combined, longer))[1] == 6 * BLOCK, "D's own prefill finds D's blocks"
        assert (await turn(house.router, longer))[1] == 4 * BLOCK

    house.run(test())


def test_the_prompts_of_one_request_add_up(house: CaseHouse) -> None:
    """Case 20. Of the two prompts one is warm."""
    warm, cold = some_tokens(40, seed=920), some_tokens(40, seed=921)

    async def test() -> None:
        await house.ask(warm, max_tokens=2)
        answer = await house.ask([warm, cold], max_tokens=2)
        assert cached(answer) == 2 * BLOCK
        assert answer["usage"]["prompt_tokens"] == 80
        check_same(answer, await house.ask([warm, cold], max_tokens=2, cache_salt="again"))

    house.run(test())
