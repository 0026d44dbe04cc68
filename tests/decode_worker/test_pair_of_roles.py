"""P and D with real schedulers and pools, every interleaving decided by the test."""

from __future__ import annotations

import pytest
from fakes_engine import reference_output
from fakes_pair import Pair, attempt
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.role import Cancel, Submit


def prompt(length: int, start: int = 10) -> list[int]:
    return [start + (i * 7) % 900 for i in range(length)]


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 16, 17, 40])
def test_prompts_around_block_and_chunk_boundaries_give_the_undisturbed_output(length: int) -> None:
    pair = Pair(block_size=4, chunk_tokens=8)
    pair.submit(attempt("a", prompt(length), max_tokens=9))
    pair.run()
    assert pair.output["a", 0] == reference_output(prompt(length), 9, 7, 0)
    assert pair.finished == {("a", 0): "length"}
    pair.check_whole()


def test_combined_mode_equals_prefill_and_decode_apart() -> None:
    pair = Pair()
    pair.submit_to_decode(attempt("a", prompt(21), max_tokens=9))
    pair.run()
    assert pair.output["a", 0] == reference_output(prompt(21), 9, 7, 0)
    assert pair.started["a"].handoff is None
    pair.check_whole()


@pytest.mark.parametrize("combined", [False, True])
def test_choices_fork_off_one_prompt_and_differ(combined: bool) -> None:
    pair = Pair()
    request = attempt("a", prompt(10), max_tokens=7, choices=(0, 1, 2))
    pair.submit_to_decode(request) if combined else pair.submit(request)
    pair.run()
    for choice in range(3):
        assert pair.output["a", choice] == reference_output(prompt(10), 7, 7, choice)
    assert pair.done.count("a") == (1 if combined else 2)
    pair.check_whole()


def test_a_resumed_attempt_continues_at_the_next_position() -> None:
    whole = reference_output(prompt(13), 12, 7, 1)
    pair = Pair()
    pair.submit(attempt("b", prompt(13), max_tokens=12, choices=(1,), emitted=whole[:5]))
    pair.run()
    assert pair.output["b", 1] == whole[5:]
    pair.check_whole()


@pytest.mark.parametrize("pull_is_open", [False, True])
def test_a_first_token_that_ends_the_answer_needs_no_decode_worker(pull_is_open: bool) -> None:
    first = reference_output(prompt(10), 1, 7, 0)[0]
    pair = Pair(eos=(first,))
    pair.submit(attempt("a", prompt(10), max_tokens=50))
    pair.prefill_step()
    if pull_is_open:
        pair.decode_step()
    while pair.prefill_step():
        pair.transfers.pump()
    assert pair.finished == {("a", 0): "stop"}
    assert pair.prefill.num_unfinished == 0, "the lease ended with the answer"
    pair.run()
    assert pair.done == ["a", "a"] and not pair.failed, "nobody may take it for a failure"
    pair.check_whole()


def test_a_handoff_of_another_transfer_is_refused() -> None:
    pair = Pair()
    pair.submit(attempt("a", prompt(10)))
    pair.prefill_step()
    handoff = pair.started["a"].handoff
    pair.decode.handle(Submit(attempt("b", prompt(10)), handoff), pair.now)
    pair.decode_step()
    assert (pair.failed["b"].retryable, pair.failed["b"].reason) == (True, "unknown_transfer")
    pair.run()
    pair.check_whole()


@pytest.mark.parametrize("combined", [False, True])
def test_more_choices_than_a_step_has_rows_are_served_in_turn(combined: bool) -> None:
    pair = Pair(max_num_seqs=3, decode_blocks=128)
    request = attempt("many", prompt(10), max_tokens=7, choices=tuple(range(8)))
    other = attempt("other", prompt(5), max_tokens=4)
    for submitted in (request, other):
        pair.submit_to_decode(submitted) if combined else pair.submit(submitted)
    pair.run()
    for choice in range(8):
        assert pair.output["many", choice] == reference_output(prompt(10), 7, 7, choice)
    assert pair.output["other", 0] == reference_output(prompt(5), 4, 7, 0)
    assert max(pair.decode_executor.batch_sizes) <= 3
    pair.check_whole()


def test_one_choice_may_end_with_its_first_token_while_others_go_on() -> None:
    first = reference_output(prompt(10), 1, 7, 0)[0]
    assert first != reference_output(prompt(10), 1, 7, 1)[0]
    pair = Pair(eos=(first,))
    pair.submit(attempt("a", prompt(10), max_tokens=5, choices=(0, 1)))
    pair.run()
    assert pair.output["a", 0] == [first]
    assert pair.output["a", 1] == reference_output(prompt(10), 5, 7, 1)
    pair.check_whole()


def test_a_second_prompt_reuses_cached_blocks_on_both_sides() -> None:
    pair = Pair()
    pair.submit(attempt("a", prompt(19), max_tokens=3))
    pair.run()
    pair.submit(attempt("b", prompt(19), max_tokens=6))
    pair.run()
    assert pair.started["a"].num_cached_tokens == 0
    assert pair.started["b"].num_cached_tokens == 16
    assert pair.transfers.pulls == [("a", 0), ("b", 4)]
    assert pair.output["b", 0] == reference_output(prompt(19), 6, 7, 0)
    pair.check_whole()


def test_a_prompt_that_the_decode_worker_holds_whole_pulls_no_blocks() -> None:
    pair = Pair(block_size=4)
    pair.submit(attempt("a", prompt(16), max_tokens=3))
    pair.run()
    pair.submit(attempt("b", prompt(16), max_tokens=3))
    pair.run()
    assert pair.transfers.pulls[-1] == ("b", 4)
    assert pair.output["b", 0] == pair.output["a", 0]
    pair.check_whole()


def test_different_cache_salts_share_nothing() -> None:
    pair = Pair()
    salted = attempt("b", prompt(19))
    object.__setattr__(salted, "cache_salt", "other tenant")
    pair.submit(attempt("a", prompt(19)))
    pair.run()
    pair.submit(salted)
    pair.run()
    assert pair.started["b"].num_cached_tokens == 0
    pair.check_whole()


def test_requests_that_outgrow_the_pool_all_finish_by_preemption() -> None:
    """CASES 22: 64 blocks, 8 requests that each grow to 16."""
    pair = Pair(block_size=4, decode_blocks=64, growth_tokens=0, prefill_blocks=200)
    for i in range(8):
        pair.submit(attempt(f"r{i}", prompt(8, start=10 + i), max_tokens=56))
    pair.run()
    for i in range(8):
        assert pair.output[f"r{i}", 0] == reference_output(prompt(8, start=10 + i), 56, 7, 0)
    assert pair.decode.load().num_preemptions > 0
    pair.check_whole()


def test_admission_that_counts_growth_avoids_preemption() -> None:
    pair = Pair(block_size=4, decode_blocks=64, growth_tokens=56, prefill_blocks=200)
    for i in range(8):
        pair.submit(attempt(f"r{i}", prompt(8, start=10 + i), max_tokens=56))
    pair.run()
    assert len(pair.finished) == 8
    assert pair.decode.load().num_preemptions == 0
    pair.check_whole()


def test_a_better_priority_overtakes_between_chunks() -> None:
    pair = Pair(chunk_tokens=8)
    pair.submit(attempt("slow", prompt(60), priority=5))
    pair.prefill_step()
    pair.submit(attempt("urgent", prompt(8, start=20), priority=0))
    pair.prefill_step()
    assert ("urgent", 0) in pair.output
    assert ("slow", 0) not in pair.output
    pair.run()
    pair.check_whole()


def test_a_cancel_takes_effect_before_the_next_chunk() -> None:
    pair = Pair(chunk_tokens=8)
    pair.submit(attempt("a", prompt(80)))
    pair.prefill_step()
    pair.cancel("a")
    assert not pair.prefill_step()
    assert pair.failed["a"].code == "cancelled"
    pair.run()
    assert ("a", 0) not in pair.output
    pair.check_whole()


def test_a_cancel_that_overtakes_its_attempt_is_remembered() -> None:
    pair = Pair()
    pair.cancel("a")
    pair.submit(attempt("a", prompt(8)))
    pair.run()
    assert pair.failed["a"].code == "cancelled"
    assert not pair.output
    pair.check_whole()


def test_one_cancelled_choice_leaves_the_others_undisturbed() -> None:
    pair = Pair()
    pair.submit(attempt("a", prompt(9), max_tokens=10, choices=(0, 1)))
    for _ in range(5):
        pair.prefill_step()
        pair.transfers.pump()
        pair.decode_step()
    pair.cancel("a", choices=(0,))
    pair.run()
    assert pair.output["a", 1] == reference_output(prompt(9), 10, 7, 1)
    assert len(pair.output["a", 0]) < 10
    pair.check_whole()


def test_a_lost_link_fails_the_attempt_for_retry_and_frees_both_sides() -> None:
    pair = Pair()
    pair.submit(attempt("a", prompt(30)))
    pair.prefill_step()
    pair.decode_step()
    pair.transfers.break_link()
    pair.run()
    assert pair.failed["a"].retryable
    assert pair.failed["a"].reason == "peer_lost"
    pair.check_whole()


def test_blocks_that_arrive_after_an_abort_are_thrown_away() -> None:
    """CASES 3: the next request's answer must not be touched by a late write."""
    pair = Pair(decode_blocks=8, caching=False)
    pair.submit(attempt("a", prompt(24)))
    for _ in range(3):
        pair.prefill_step()
        pair.decode_step()
    late = pair.transfers
    late.pump()
    arrived = list(late.to_decode)
    assert arrived
    pair.decode.handle(Cancel("a"), pair.now)
    late.to_decode = []
    pair.decode.handle(Submit(attempt("b", prompt(20, start=50), max_tokens=6)), pair.now)
    pair.decode_step()
    for event in arrived:
        pair.decode.handle(event, pair.now)
    pair.prefill.handle(Cancel("a"), pair.now)
    pair.run()
    assert pair.output["b", 0] == reference_output(prompt(20, start=50), 6, 7, 0)
    pair.check_whole()


def test_a_lease_that_nobody_pulls_expires_and_frees_its_blocks() -> None:
    pair = Pair()
    pair.decode.handle(Cancel("a"), pair.now)
    pair.submit(attempt("a", prompt(9)))
    pair.prefill_step()
    pair.prefill_step()
    assert pair.prefill.load().kv_blocks["leased"] == 3
    pair.transfers.expire_unpulled()
    pair.run()
    pair.check_whole()


def test_a_deadline_ends_an_attempt_wherever_it_is() -> None:
    pair = Pair(chunk_tokens=4)
    pair.submit(attempt("prefilling", prompt(100), deadline_s=5))
    pair.submit_to_decode(attempt("decoding", prompt(4, start=30), max_tokens=150, deadline_s=8))
    pair.run()
    assert {f.code for f in pair.failed.values()} == {"deadline_exceeded"}
    assert set(pair.failed) == {"prefilling", "decoding"}
    pair.check_whole()


@pytest.mark.parametrize(
    ("request_kwargs", "code"),
    [
        ({"prompt": prompt(150), "max_tokens": 51}, "context_length_exceeded"),
        ({"prompt": [5, 1000], "max_tokens": 1}, "invalid_request"),
    ],
)
def test_what_can_never_run_is_refused_at_once(
    request_kwargs: dict[str, object], code: str
) -> None:
    pair = Pair()
    bad = attempt("a", request_kwargs["prompt"], max_tokens=request_kwargs["max_tokens"])  # type: ignore[arg-type]
    pair.submit(bad)
    pair.prefill_step()
    assert pair.failed["a"].code == code
    assert not pair.failed["a"].retryable
    pair.check_whole()


def test_kv_of_another_model_is_refused() -> None:
    pair = Pair()
    pair.submit(attempt("a", prompt(9)))
    handoff = _handoff_of(pair)
    object.__setattr__(handoff, "compat_key", "other")
    pair.decode.handle(Submit(attempt("a2", prompt(9)), handoff), 0.0)
    pair.decode_step()
    assert pair.failed["a2"].reason == "incompatible"


def test_a_sliding_window_frees_blocks_and_answers_rightly() -> None:
    pair = Pair(block_size=4, window=10)
    pair.submit(attempt("a", prompt(40), max_tokens=30))
    most = 0
    for _ in range(60):
        pair.now += 1
        pair.prefill_step()
        pair.transfers.pump()
        pair.decode_step()
        held = [n for _, n in pair.decode.pool.holders()]
        most = max([most, *held])
    assert len(pair.output["a", 0]) == 30
    assert most <= 5
    pair.run()
    pair.check_whole()


def test_unfilled_slots_stay_below_one_block_for_each_sequence() -> None:
    pair = Pair(block_size=4)
    for i in range(4):
        pair.submit(attempt(f"r{i}", prompt(9 + i, start=10 + i), max_tokens=20))
    for _ in range(20):
        pair.prefill_step()
        pair.transfers.pump()
        pair.decode_step()
        load = pair.decode.load()
        assert load.kv_unfilled_slots <= 4 * max(load.num_running, 0)
        assert pair.prefill.load().kv_unfilled_slots <= 4 * pair.prefill.load().num_running
    pair.run()


def _handoff_of(pair: Pair):  # type: ignore[no-untyped-def]
    pair.prefill_step()
    handoff = pair.started["a"].handoff
    assert handoff is not None
    return handoff


@st.composite
def requests(draw: st.DrawFn) -> list[dict[str, int]]:
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {
                    "length": st.integers(1, 40),
                    "shared": st.integers(0, 1),
                    "max_tokens": st.integers(1, 25),
                    "choices": st.integers(1, 3),
                    "priority": st.integers(0, 2),
                    "combined": st.integers(0, 1),
                    "cancel_at": st.integers(0, 60),
                    "at": st.integers(0, 15),
                }
            ),
            min_size=1,
            max_size=8,
        )
    )


@settings(max_examples=150, deadline=None)
@given(
    requests(),
    st.sampled_from([20, 30, 64]),
    st.integers(0, 16),
    st.booleans(),
    st.integers(0, 40),
)
def test_any_mix_gives_undisturbed_answers_and_leaks_nothing(
    mix: list[dict[str, int]], num_blocks: int, growth: int, caching: bool, break_at: int
) -> None:
    pair = Pair(
        decode_blocks=num_blocks, prefill_blocks=num_blocks, growth_tokens=growth, caching=caching
    )
    prompts = {
        f"r{i}": prompt(r["length"], start=10 if r["shared"] else 11 + i) for i, r in enumerate(mix)
    }
    for turn in range(60):
        pair.now += 1
        for i, r in enumerate(mix):
            key = f"r{i}"
            if r["at"] == turn:
                request = attempt(
                    key,
                    prompts[key],
                    max_tokens=r["max_tokens"],
                    choices=tuple(range(r["choices"])),
                    priority=r["priority"],
                )
                pair.submit_to_decode(request) if r["combined"] else pair.submit(request)
            if r["cancel_at"] == turn and r["cancel_at"] < 30:
                pair.cancel(key)
        if turn == break_at and break_at < 20:
            pair.transfers.break_link()
        pair.prefill_step()
        pair.transfers.pump()
        pair.decode_step()
    pair.run()
    for i, r in enumerate(mix):
        key = f"r{i}"
        for choice in range(r["choices"]):
            got = pair.output[key, choice]
            want = reference_output(prompts[key], r["max_tokens"], 7, choice)
            assert got == want[: len(got)]
            assert got == want or key in pair.failed
    pair.check_whole()
