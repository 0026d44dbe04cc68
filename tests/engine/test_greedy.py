"""Which rows of logits are only asked for their largest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from core.request import SamplingParams
from engine.greedy import only_largest
from engine.sample_row import SampleRow
from engine.token_history import TokenHistory

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


def row(logits_row: int, changes: Mapping[str, Any] | None = None) -> SampleRow:
    params = dataclasses.replace(GREEDY, **(changes or {}))
    history = TokenHistory((1, 2)) if params.has_penalties else None
    return SampleRow(params, 0, 3, history, logits_row, (0,))


def test_greedy_rows_are_marked() -> None:
    marks = only_largest([row(0), row(1, {"top_k": 1, "temperature": 1.0}), row(2, {"seed": 3})], 3)
    assert marks is not None and marks.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.7},
        {"logprobs": 0},
        {"logit_bias": ((5, 1.0),)},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"min_tokens": 7},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_rows_that_need_more_than_the_largest_are_not(changes: Mapping[str, Any]) -> None:
    marks = only_largest([row(0), row(1, changes)], 2)
    assert marks is not None and marks.tolist() == [1, 0]
    assert only_largest([row(0, changes)], 1) is None


def test_choices_that_share_logits_must_all_be_greedy() -> None:
    marks = only_largest([row(0), row(0, {"temperature": 1.0}), row(1)], 2)
    assert marks is not None and marks.tolist() == [0, 1]
