"""Messages of KV that are corrupted on their way: with verification never a wrong token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_cases import CaseHouse, Json, ask, case_house, check_same, settings, some_tokens

NUM_ASKS = 4
CORRUPTING = ["kv_send:corrupt:every=2", "kv_send:truncate:every=2", "kv_recv:corrupt:every=2"]
"""The first try of every second pull, at least: each pull is one message."""


@pytest.fixture(scope="module")
def undisturbed(model: Path) -> list[Json]:
    with case_house(settings(model)) as house:
        return [house.run(_ask(house, number)) for number in range(NUM_ASKS)]


@pytest.fixture
def house(model: Path, request: pytest.FixtureRequest) -> Iterator[CaseHouse]:
    spec, verify = request.param
    overrides = (f"faults.spec={spec}", f"kv_transfer.verify={verify}")
    with case_house(settings(model, *overrides)) as made:
        yield made


async def _ask(house: CaseHouse, number: int) -> Json:
    prompt = some_tokens(90 + number, seed=number)
    answer = await ask(house.router, prompt, max_tokens=12, ignore_eos=True)
    await house.check_whole()
    return answer


@pytest.mark.parametrize("house", [(spec, True) for spec in CORRUPTING], indirect=True, ids=str)
def test_with_verification_every_answer_is_right(house: CaseHouse, undisturbed: list[Json]) -> None:
    """The pull fails, the prompt is computed again, and all pools are whole after each."""
    for number, expected in enumerate(undisturbed):
        check_same(house.run(_ask(house, number)), expected)
    assert house.d.transferred.failures["corrupt"] >= NUM_ASKS // 2
    assert house.d.transferred.num_transfers == NUM_ASKS


@pytest.mark.parametrize("house", [(spec, False) for spec in CORRUPTING], indirect=True, ids=str)
def test_without_it_some_are_wrong(house: CaseHouse, undisturbed: list[Json]) -> None:
    """So that the test above can fail."""
    answers = [house.run(_ask(house, number)) for number in range(NUM_ASKS)]
    num_wrong = 0
    for answer, expected in zip(answers, undisturbed, strict=True):
        try:
            check_same(answer, expected)
        except AssertionError:
            num_wrong += 1
    assert num_wrong == NUM_ASKS // 2
    assert house.d.transferred.failures == {}
