"""How many requests of batches may be in the house beside online ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from router.batch.pace import HouseView, num_allowed

IDLE = HouseView(
    num_seats=100,
    num_sequences=0,
    num_waiting_at_workers=0,
    num_online_waiting=0,
    num_batch=0,
    free_kv=1.0,
)
BUSY = dataclasses.replace(IDLE, num_sequences=10, num_batch=10)


def allowed(view: HouseView, *, most: int = 1000, **changes: Any) -> int:
    return num_allowed(dataclasses.replace(view, **changes), most)


def test_some_places_are_kept_for_whoever_comes_next() -> None:
    assert allowed(BUSY) == 75
    assert allowed(BUSY, most=20) == 20


def test_online_requests_take_places_from_batches() -> None:
    assert allowed(BUSY, num_sequences=50) == 35
    assert allowed(BUSY, num_sequences=95) == 0


@pytest.mark.parametrize(
    "changes", [{"num_online_waiting": 1}, {"num_waiting_at_workers": 1}, {"free_kv": 0.1}]
)
def test_nobody_new_comes_while_others_wait_or_memory_is_short(changes: dict[str, Any]) -> None:
    assert allowed(BUSY, **changes) == 0


def test_an_empty_house_takes_one_however_small_it_is() -> None:
    assert allowed(IDLE, num_seats=1, free_kv=0.0) == 1
    assert allowed(IDLE, num_seats=0) == 0
