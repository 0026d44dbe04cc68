"""Which prompts a decode worker computes in its next step, where it has to compute any itself."""

from __future__ import annotations

import pytest
from fakes_engine import reference_output
from fakes_pair import Pair, attempt
from hypothesis import given, settings
from hypothesis import strategies as st

from core.request import BACKGROUND_PRIORITY as BATCH
from decode_worker.scheduler import DecodeLimits, DecodeScheduler
from engine.sequence import Sequence
from kv_cache.block_hash import root_hash
from kv_cache.block_pool import BlockPool

CHUNK = 8


def make(num_blocks: int = 64, max_num_seqs: int = 8) -> DecodeScheduler:
    limits = DecodeLimits(max_num_seqs, max_num_seqs + CHUNK, CHUNK, 8, None)
    return DecodeScheduler(BlockPool(num_blocks, 4), limits)


def sequence(name: str, length: int, *, arrival: float, priority: int = 0) -> Sequence:
    start = 1 + 100 * (sum(name.encode()) % 97)
    request = attempt(name, range(start, start + length), priority=priority, max_tokens=50)
    return Sequence(request, (0,), arrival=arrival, root=root_hash("k"))


def step(scheduler: DecodeScheduler) -> dict[str, int]:
    """Tokens of each sequence in the next step, which is then taken as computed."""
    chunks = scheduler.next_step().chunks
    for chunk in chunks:
        scheduler.computed(chunk.sequence, chunk.num_tokens)
        if chunk.sample_choices:
            chunk.sequence.append(1)
    return {chunk.sequence.transfer_id: chunk.num_tokens for chunk in chunks}


@pytest.mark.parametrize("priority", [1, BATCH])
def test_a_better_priority_overtakes_between_the_chunks_of_a_prompt(priority: int) -> None:
    scheduler = make()
    scheduler.add(sequence("slow", 30, arrival=0, priority=priority))
    assert step(scheduler) == {"slow": 8}
    scheduler.add(sequence("urgent", 16, arrival=9))
    assert step(scheduler) == {"urgent": 8}
    assert step(scheduler) == {"urgent": 8}
    assert step(scheduler) == {"urgent": 1, "slow": 8}


def test_equals_are_computed_in_the_order_of_their_coming() -> None:
    scheduler = make()
    scheduler.add(sequence("first", 20, arrival=0))
    scheduler.add(sequence("second", 4, arrival=1))
    assert step(scheduler) == {"first": 8}
    assert step(scheduler) == {"first": 8}
    assert step(scheduler) == {"first": 4, "second": 4}


def test_a_batchs_prompt_makes_no_step_longer_in_which_others_are_computed() -> None:
    scheduler = make()
    scheduler.add(sequence("batch", 20, arrival=0, priority=BATCH))
    assert step(scheduler) == {"batch": 8}
    scheduler.add(sequence("online", 3, arrival=8))
    scheduler.add(sequence("another", 2, arrival=9, priority=1))
    assert step(scheduler) == {"online": 3, "another": 2}
    assert step(scheduler) == {"online": 1, "another": 1, "batch": 8}


def test_a_batch_goes_on_while_another_prompt_has_no_room() -> None:
    """Else both would wait for each other."""
    scheduler = make(num_blocks=12)
    batch = sequence("batch", 20, arrival=0, priority=BATCH)
    scheduler.add(batch)
    assert step(scheduler) == {"batch": 8}
    scheduler.add(sequence("online", 36, arrival=1))
    assert step(scheduler) == {"batch": 8}
    assert step(scheduler) == {"batch": 4}
    scheduler.remove(batch)
    assert step(scheduler) == {"online": 8}


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 20), st.sampled_from([-1000, 0, 1, 1000])),
        min_size=1,
        max_size=8,
    ),
    st.integers(24, 96),
    st.integers(1, 5),
)
def test_whoever_overtakes_whom_every_answer_is_the_undisturbed_one(
    requests: list[tuple[int, int, int]], num_blocks: int, apart: int
) -> None:
    """Prompts of all classes come some steps apart to a worker that computes them itself."""
    pair = Pair(decode_blocks=num_blocks, growth_tokens=0)
    prompts = [[10 + i + 7 * j % 900 for j in range(n)] for i, (n, _, _) in enumerate(requests)]
    for i, (_, max_tokens, priority) in enumerate(requests):
        pair.submit_to_decode(
            attempt(f"r{i}", prompts[i], max_tokens=max_tokens, priority=priority)
        )
        for _ in range(apart):
            pair.now += 1.0
            pair.decode_step()
    pair.run()
    for i, (_, max_tokens, _) in enumerate(requests):
        assert pair.output[f"r{i}", 0] == reference_output(prompts[i], max_tokens, 7, 0)
    pair.check_whole()
