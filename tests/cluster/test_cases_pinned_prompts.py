"""Prompts that stay cached on real workers, under pressure that evicts all others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes_byte_model import write_byte_model
from fakes_cases import CaseHouse, Json, case_house, check_same, settings, some_tokens
from fakes_observed_worker import ObservedWorker

from core import metric_names as names

BLOCK = 16
NUM_BLOCKS = 40
PROMPT_TOKENS = 8 * BLOCK + 1
FULL = 8 * BLOCK
LARGE_TOKENS = 30 * BLOCK
FIVE_MINUTES = {"type": "ephemeral"}
AN_HOUR = {"type": "ephemeral", "ttl": "1h"}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseHouse]:
    """Both workers are small, and all of their blocks may be pinned."""
    model = write_byte_model(tmp_path_factory.mktemp("byte-model"))
    small = (f"cache.num_blocks={NUM_BLOCKS}", "cache.max_pinned_share=1")
    with case_house(settings(model, "model.max_model_len=512", *small)) as made:
        yield made


async def skip(worker: ObservedWorker, seconds: float) -> None:
    """The worker's clock goes ahead while it has nothing to do."""
    await worker.until_idle()
    worker.clock.ahead_s += seconds


def counted(answer: Json, name: str) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"][name]
    return tokens


async def ask(house: CaseHouse, seed: int, salt: str, **fields: object) -> Json:
    prompt = some_tokens(PROMPT_TOKENS, seed)
    return await house.ask(prompt, max_tokens=2, cache_salt=salt, **fields)


async def flood(house: CaseHouse) -> None:
    """Needs every block that is not pinned."""
    for seed in range(3):
        await house.ask(some_tokens(LARGE_TOKENS, 100 + seed), max_tokens=2)


async def num_pinned(worker: ObservedWorker) -> int:
    """As its audit says, whose books must balance."""
    books = await worker.audit()
    assert books.consistent, books.problem
    return sum(books.pinned_blocks.values())


def test_a_pinned_prompt_survives_and_ends_with_its_time(house: CaseHouse) -> None:
    async def test() -> None:
        pinned = await ask(house, 1, "first", cache_control=FIVE_MINUTES)
        assert counted(pinned, "pinned_tokens") == FULL
        await ask(house, 2, "first")
        await flood(house)
        assert await num_pinned(house.p) == FULL // BLOCK
        assert await num_pinned(house.d) == 0, "only who computes a prompt pins it"
        again = await ask(house, 1, "first")
        assert counted(again, "cached_tokens") == FULL
        check_same(again, pinned)
        assert counted(await ask(house, 2, "first"), "cached_tokens") == 0
        await skip(house.p, 301)
        await flood(house)
        assert await num_pinned(house.p) == 0
        assert counted(await ask(house, 1, "first"), "cached_tokens") == 0

    house.run(test())


def test_another_mark_starts_the_time_anew(house: CaseHouse) -> None:
    async def test() -> None:
        for _ in range(3):
            await ask(house, 1, "anew", cache_control=FIVE_MINUTES)
            await skip(house.p, 200)
        await flood(house)
        assert counted(await ask(house, 1, "anew"), "cached_tokens") == FULL
        await skip(house.p, 301)

    house.run(test())


def test_pins_of_everything_keep_no_prompt_waiting(house: CaseHouse) -> None:
    """A pool full of pins serves a prompt that needs nearly all of it, and drops the oldest."""
    large = some_tokens(LARGE_TOKENS, 7)

    async def test() -> None:
        for seed in range(5):
            await ask(house, seed, "full", cache_control=AN_HOUR)
        pinned_before = await num_pinned(house.p)
        assert pinned_before >= NUM_BLOCKS - FULL // BLOCK
        answer = await house.ask(large, max_tokens=3, cache_control=AN_HOUR)
        assert counted(answer, "cached_tokens") == 0
        assert counted(answer, "pinned_tokens") == LARGE_TOKENS
        assert await house.metric(names.RETRIES_TOTAL) == 0
        await house.check_whole()
        dropped, worker = names.WORKER_PINS_DROPPED_TOTAL, house.p.member.worker_id
        await house.until(lambda: house.reported(worker).num_pins_dropped > 0)
        assert await house.metric(dropped, worker=worker) > 0
        await ask(house, 4, "full", cache_control=AN_HOUR)
        await skip(house.p, 3601)
        await flood(house)
        check_same(await house.ask(large, max_tokens=3, cache_salt="alone"), answer)

    house.run(test())


def test_a_combined_worker_pins_what_it_computes(house: CaseHouse) -> None:
    combined = house.add_front("router.mode=combined")
    house.run(combined.until_connected(2))

    async def test() -> None:
        prompt = some_tokens(PROMPT_TOKENS, 30)
        body = {"model": combined.model, "prompt": prompt, "max_tokens": 2}
        pinned = await combined.http.post("/v1/completions", json=body | {"cache_control": AN_HOUR})
        assert counted(pinned.json(), "pinned_tokens") == FULL
        assert await num_pinned(house.d) == FULL // BLOCK
        for seed in range(3):
            large = {"prompt": some_tokens(LARGE_TOKENS, 200 + seed)}
            await combined.http.post("/v1/completions", json=body | large)
        again = await combined.http.post("/v1/completions", json=body)
        assert counted(again.json(), "cached_tokens") == FULL
        await skip(house.d, 3601)

    house.run(test())
