"""What the next prefill step computes, and who is let in."""

from __future__ import annotations

from fakes_pair import attempt

from core.request import BACKGROUND_PRIORITY as BATCH
from engine.plan import PlannedChunk
from engine.sequence import Sequence, SequenceStatus
from kv_cache.block_hash import root_hash
from kv_cache.block_pool import BlockPool
from prefill_worker.scheduler import PrefillScheduler


def make(num_blocks: int = 32, chunk_tokens: int = 8, max_num_seqs: int = 4) -> PrefillScheduler:
    pool = BlockPool(num_blocks, 4)
    return PrefillScheduler(pool, chunk_tokens=chunk_tokens, max_num_seqs=max_num_seqs, window=None)


def sequence(name: str, length: int, *, arrival: float, priority: int = 0) -> Sequence:
    start = 1 + sum(name.encode()) % 97
    request = attempt(name, range(start, start + length), priority=priority)
    return Sequence(request, (0,), arrival=arrival, root=root_hash("k"))


def names(chunks: list[PlannedChunk]) -> list[tuple[str, int]]:
    return [(c.sequence.transfer_id, c.num_tokens) for c in chunks]


def step(scheduler: PrefillScheduler) -> list[tuple[str, int]]:
    chunks = scheduler.next_chunks()
    planned = names(chunks)
    for chunk in chunks:
        scheduler.complete(chunk)
        if chunk.sample_choices:
            scheduler.remove(chunk.sequence)
    return planned


def test_a_step_never_exceeds_its_token_budget_and_fills_it_first_come_first_served() -> None:
    scheduler = make(chunk_tokens=8)
    scheduler.add(sequence("a", 12, arrival=0))
    scheduler.add(sequence("b", 3, arrival=1))
    scheduler.add(sequence("c", 9, arrival=2))
    assert step(scheduler) == [("a", 8)]
    assert step(scheduler) == [("a", 4), ("b", 3), ("c", 1)]
    assert step(scheduler) == [("c", 8)]
    assert step(scheduler) == []


def test_a_prompt_that_does_not_fit_holds_back_smaller_ones_behind_it() -> None:
    scheduler = make(num_blocks=8)
    scheduler.add(sequence("a", 20, arrival=0))
    scheduler.add(sequence("b", 16, arrival=1))
    scheduler.add(sequence("c", 2, arrival=2))
    assert step(scheduler) == [("a", 8)]
    assert step(scheduler) == [("a", 8)]
    assert step(scheduler) == [("a", 4)]
    assert step(scheduler) == [("b", 8)]


def test_an_admitted_prompt_is_promised_all_its_blocks_but_takes_them_chunk_by_chunk() -> None:
    scheduler = make(num_blocks=8, chunk_tokens=4)
    running = sequence("a", 20, arrival=0)
    scheduler.add(running)
    scheduler.next_chunks()
    assert len(running.block_table) == 1
    assert scheduler.num_promised_blocks == 4


def test_a_better_priority_goes_first_and_the_rest_of_the_budget_to_the_other() -> None:
    scheduler = make(chunk_tokens=8)
    scheduler.add(sequence("late", 20, arrival=0, priority=3))
    assert step(scheduler) == [("late", 8)]
    scheduler.add(sequence("first", 5, arrival=9, priority=0))
    assert step(scheduler) == [("first", 5), ("late", 3)]


def test_no_more_prompts_run_at_once_than_allowed() -> None:
    scheduler = make(chunk_tokens=100, max_num_seqs=2)
    for i in range(4):
        scheduler.add(sequence(f"s{i}", 3, arrival=i))
    assert len(step(scheduler)) == 2
    assert len(step(scheduler)) == 2


def test_removing_a_sequence_anywhere_releases_its_blocks() -> None:
    scheduler = make()
    running, waiting = sequence("a", 30, arrival=0), sequence("b", 5, arrival=1)
    scheduler.add(running)
    scheduler.add(waiting)
    step(scheduler)
    scheduler.remove(running)
    scheduler.remove(waiting)
    assert running.status is waiting.status is SequenceStatus.FINISHED
    assert scheduler.next_chunks() == []
    assert scheduler.num_promised_blocks == 0


def test_a_cached_prefix_is_skipped_but_the_last_token_is_always_computed() -> None:
    scheduler = make(chunk_tokens=100)
    scheduler.add(sequence("a", 16, arrival=0))
    assert step(scheduler) == [("a", 16)]
    again = Sequence(
        attempt("again", sequence("a", 16, arrival=0).token_ids),
        (0,),
        arrival=1,
        root=root_hash("k"),
    )
    scheduler.add(again)
    assert step(scheduler) == [("again", 4)]


def test_a_batchs_prompt_makes_no_step_longer_in_which_others_are() -> None:
    scheduler = make(chunk_tokens=8)
    scheduler.add(sequence("batch", 20, arrival=0, priority=BATCH))
    assert step(scheduler) == [("batch", 8)]
    scheduler.add(sequence("long", 11, arrival=8))
    scheduler.add(sequence("short", 2, arrival=9))
    assert step(scheduler) == [("long", 8)]
    assert step(scheduler) == [("long", 3), ("short", 2)]
    assert step(scheduler) == [("batch", 8)]


def test_batches_fill_steps_among_themselves() -> None:
    scheduler = make(chunk_tokens=8)
    scheduler.add(sequence("a", 5, arrival=0, priority=BATCH))
    scheduler.add(sequence("b", 5, arrival=1, priority=BATCH + 7))
    assert step(scheduler) == [("a", 5), ("b", 3)]
    assert step(scheduler) == [("b", 2)]


def test_a_batch_goes_on_while_another_prompt_has_no_room() -> None:
    """Else both would wait for each other."""
    scheduler = make(num_blocks=8, chunk_tokens=8)
    scheduler.add(sequence("batch", 20, arrival=0, priority=BATCH))
    assert step(scheduler) == [("batch", 8)]
    scheduler.add(sequence("online", 24, arrival=1))
    assert step(scheduler) == [("batch", 8)]
    assert step(scheduler) == [("batch", 4)]
    assert step(scheduler) == [("online", 8)]
