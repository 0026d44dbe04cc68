"""Plans become arrays: compared with loops that do the same slowly."""

from __future__ import annotations

import numpy as np
from fakes_pair import attempt
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import StepInput, flatten, sample_rows
from engine.plan import PlannedChunk, make_plan
from engine.sequence import NO_BLOCK, Sequence
from kv_cache.block_hash import root_hash

BLOCK_SIZE = 4


def make_sequence(index: int, length: int, computed: int, first_block: int) -> Sequence:
    sequence = Sequence(
        attempt(f"s{index}", [index * 1000 + i for i in range(length)]),
        (0,),
        arrival=float(index),
        root=root_hash("k"),
    )
    sequence.num_computed = computed
    num_blocks = -(-length // BLOCK_SIZE)
    sequence.block_table.extend(range(first_block, first_block + num_blocks))
    return sequence


@st.composite
def chunks(draw: st.DrawFn) -> list[PlannedChunk]:
    planned = []
    for index in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 30))
        computed = draw(st.integers(0, length - 1))
        num_tokens = draw(st.integers(1, length - computed))
        sequence = make_sequence(index, length, computed, 100 * index)
        ends = computed + num_tokens == length
        planned.append(PlannedChunk(sequence, num_tokens, (0,) if ends else ()))
    return planned


@given(chunks())
def test_every_token_gets_its_position_slot_and_context(planned: list[PlannedChunk]) -> None:
    plan = make_plan(planned)
    assert plan is not None
    step = flatten(plan, BLOCK_SIZE)
    token = 0
    for row, chunk in enumerate(plan.chunks):
        sequence = chunk.sequence
        assert step.query_starts[row] == token
        assert step.context_lens[row] == sequence.num_computed + chunk.num_tokens
        for position in range(sequence.num_computed, sequence.num_computed + chunk.num_tokens):
            block = sequence.block_table.view()[position // BLOCK_SIZE]
            assert step.token_ids[token] == sequence.token_ids[position]
            assert step.positions[token] == position
            assert step.slot_mapping[token] == block * BLOCK_SIZE + position % BLOCK_SIZE
            token += 1
    assert step.query_starts[-1] == token == plan.num_tokens
    check_logits_rows(step, list(plan.chunks))


def check_logits_rows(step: StepInput, planned: list[PlannedChunk]) -> None:
    ends = [int(end) - 1 for end in step.query_starts[1:]]
    wanted = [end for end, chunk in zip(ends, planned, strict=True) if chunk.sample_choices]
    assert step.logits_rows.tolist() == wanted


def test_single_tokens_come_first_whatever_the_order_planned() -> None:
    long, single = make_sequence(0, 10, 2, 0), make_sequence(1, 10, 9, 10)
    plan = make_plan([PlannedChunk(long, 8, (0,)), PlannedChunk(single, 1, (0,))])
    assert plan is not None
    assert plan.num_decode == 1
    assert plan.chunks[0].sequence is single


def test_choices_of_one_prompt_share_a_row_of_logits() -> None:
    forked, other = make_sequence(0, 10, 2, 0), make_sequence(1, 10, 9, 10)
    plan = make_plan([PlannedChunk(other, 1, (0,)), PlannedChunk(forked, 8, (0, 1, 2))])
    assert plan is not None
    rows = sample_rows(plan, ())
    assert [(row.logits_row, row.choice) for row in rows] == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert all(row.position == 0 for row in rows)


def test_released_blocks_read_as_block_zero() -> None:
    sequence = make_sequence(0, 12, 11, 7)
    assert sequence.block_table.drop_leading(2) == [7, 8]
    assert sequence.block_table.drop_leading(2) == []
    plan = make_plan([PlannedChunk(sequence, 1, (0,))])
    assert plan is not None
    assert flatten(plan, BLOCK_SIZE).block_tables.tolist() == [[0, 0, 9]]
    assert NO_BLOCK in sequence.block_table.view()


def test_an_empty_plan_is_no_plan() -> None:
    assert make_plan([]) is None


def test_a_block_table_grows_beyond_its_buffer_and_keeps_its_ids() -> None:
    sequence = make_sequence(0, 4, 0, 0)
    for block in range(1, 200):
        sequence.block_table.extend([block])
    assert np.array_equal(sequence.block_table.view(), np.arange(200))
