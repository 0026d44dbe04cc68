from __future__ import annotations

import pytest

from core.request import FinishReason, SamplingParams
from engine.stop import finish_reason

EOS = (2, 3)


@pytest.mark.parametrize(
    ("params", "token_id", "num_output_tokens", "expected"),
    [
        (SamplingParams(max_tokens=8), 9, 1, None),
        (SamplingParams(max_tokens=8), 9, 7, None),
        (SamplingParams(max_tokens=8), 9, 8, FinishReason.LENGTH),
        (SamplingParams(max_tokens=1), 9, 1, FinishReason.LENGTH),
        (SamplingParams(max_tokens=8), 2, 1, FinishReason.STOP),
        (SamplingParams(max_tokens=8), 3, 5, FinishReason.STOP),
        (SamplingParams(max_tokens=8, ignore_eos=True), 2, 5, None),
        (SamplingParams(max_tokens=8, ignore_eos=True), 2, 8, FinishReason.LENGTH),
        (SamplingParams(max_tokens=8, stop_token_ids=(9,)), 9, 1, FinishReason.STOP),
        (SamplingParams(max_tokens=8, stop_token_ids=(9,)), 8, 1, None),
        (
            SamplingParams(max_tokens=8, stop_token_ids=(9,), ignore_eos=True),
            9,
            1,
            FinishReason.STOP,
        ),
    ],
)
def test_a_choice_ends_at_a_stop_token_or_at_its_length(
    params: SamplingParams, token_id: int, num_output_tokens: int, expected: FinishReason | None
) -> None:
    assert finish_reason(params, token_id, num_output_tokens, EOS) is expected


def test_a_stop_token_at_the_last_position_is_a_stop() -> None:
    assert finish_reason(SamplingParams(max_tokens=8), 2, 8, EOS) is FinishReason.STOP


def test_min_tokens_come_before_any_stop() -> None:
    params = SamplingParams(max_tokens=8, min_tokens=5, stop_token_ids=(9,))
    for token_id in (2, 9):
        reasons = [finish_reason(params, token_id, n, EOS) for n in range(1, 8)]
        assert reasons == [None] * 5 + [FinishReason.STOP] * 2


def test_min_tokens_equal_to_max_tokens_end_by_length() -> None:
    params = SamplingParams(max_tokens=3, min_tokens=3)
    assert finish_reason(params, 2, 3, EOS) is FinishReason.LENGTH
