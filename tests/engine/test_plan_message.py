"""What reaches the other ranks is what the leader meant, bit for bit."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import StepInput
from engine.plan_message import CopyBlocks, PlanMessage, Step, Stop, Unpack, decode, encode

wide = st.integers(-(2**63), 2**63 - 1)
narrow = st.integers(-(2**31), 2**31 - 1)


@st.composite
def steps(draw: st.DrawFn) -> StepInput:
    num_tokens, num_rows = draw(st.integers(0, 40)), draw(st.integers(0, 6))
    num_columns, num_logits = draw(st.integers(0, 5)), draw(st.integers(0, 6))

    def array(numbers: st.SearchStrategy[int], size: int, dtype: type) -> np.ndarray:
        drawn = draw(st.lists(numbers, min_size=size, max_size=size))
        return np.array(drawn, dtype=dtype)

    columns = array(wide, 3 * num_tokens, np.int64).reshape(3, num_tokens)
    return StepInput(
        token_ids=columns[0],
        positions=columns[1],
        slot_mapping=columns[2],
        logits_rows=array(wide, num_logits, np.int64),
        query_starts=array(narrow, num_rows + 1, np.int32),
        context_lens=array(narrow, num_rows, np.int32),
        block_tables=array(narrow, num_rows * num_columns, np.int32).reshape(num_rows, num_columns),
        num_decode=draw(st.integers(0, 2**32 - 1)),
    )


@given(steps())
def test_a_step_comes_out_as_it_went_in(step: StepInput) -> None:
    message = decode(bytearray(encode(Step(step))))
    assert isinstance(message, Step)
    for field in fields(StepInput):
        sent, received = getattr(step, field.name), getattr(message.step, field.name)
        assert np.array_equal(sent, received), field.name
        if isinstance(sent, np.ndarray):
            assert sent.dtype == received.dtype and sent.shape == received.shape, field.name
            assert received.flags.aligned and received.flags.writeable, field.name


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))))
def test_copies_come_out_as_they_went_in(pairs: list[tuple[int, int]]) -> None:
    message = CopyBlocks(tuple(pairs))
    assert decode(bytearray(encode(message))) == message


@given(st.text(), st.integers(0, 2**63), st.lists(st.integers(0, 2**31 - 1)))
def test_what_is_to_be_unpacked_comes_out_as_it_went_in(
    link_id: str, seq: int, blocks: list[int]
) -> None:
    message = Unpack(link_id, seq, tuple(blocks))
    assert decode(bytearray(encode(message))) == message


@pytest.mark.parametrize("message", [Stop()])
def test_a_message_without_content_is_itself(message: PlanMessage) -> None:
    assert decode(bytearray(encode(message))) == message
