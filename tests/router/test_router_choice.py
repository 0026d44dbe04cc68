"""One choice: every token once and in order, whatever order they come in."""

from __future__ import annotations

import pytest
from fakes_house import Texts
from hypothesis import given, settings
from hypothesis import strategies as st

from core.request import FinishReason, TokenEvent
from router.life.choice import Choice, ChoiceState, Delta
from router.life.timeline import RequestTimeline
from text.detokenizer import Detokenizer
from text.stop_strings import StopMatcher

TEXT = "Zoë ate 12 naïve 🍣 and left; the end."


def choice_of(texts: Texts, stop: tuple[str, ...] = (), min_tokens: int = 0) -> Choice:
    choice = Choice(0, Detokenizer(texts.tokenizer), StopMatcher(stop), min_tokens)
    choice.begin_attempt()
    return choice


def tokens_of(texts: Texts, text: str = TEXT) -> list[TokenEvent]:
    ids = texts.tokenizer.encode(text, False)
    return [
        TokenEvent("t", 0, i, id_, None, FinishReason.LENGTH if i == len(ids) - 1 else None)
        for i, id_ in enumerate(ids)
    ]


def fed(choice: Choice, events: list[TokenEvent]) -> list[Delta]:
    return [delta for event in events if (delta := choice.accept(event))]


def test_tokens_in_any_order_and_number_give_one_text(texts: Texts) -> None:
    ordered = tokens_of(texts)

    @settings(max_examples=50)
    @given(st.permutations(ordered), st.lists(st.sampled_from(ordered), max_size=10))
    def check(shuffled: list[TokenEvent], repeated: list[TokenEvent]) -> None:
        choice = choice_of(texts)
        deltas = fed(choice, [*shuffled[:5], *repeated, *shuffled, *repeated])
        assert "".join(d.text for d in deltas) == TEXT
        assert [t for d in deltas for t in d.token_ids] == [e.token_id for e in ordered]
        assert [d.finish_reason for d in deltas if d.finish_reason] == [FinishReason.LENGTH]
        assert deltas[-1].finish_reason is not None and choice.state is ChoiceState.FINISHED

    check()


def test_a_character_is_never_split(texts: Texts) -> None:
    choice = choice_of(texts)
    assert all("\ufffd" not in delta.text for delta in fed(choice, tokens_of(texts)))


def test_what_a_failed_attempt_sent_too_early_is_forgotten(texts: Texts) -> None:
    events = tokens_of(texts)
    choice = choice_of(texts)
    assert choice.accept(events[0]) and choice.accept(events[2]) is None
    assert choice.has_gap
    choice.requeue()
    assert not choice.has_gap and choice.state is ChoiceState.QUEUED
    choice.begin_attempt()
    delta = choice.accept(events[1])
    assert delta is not None and delta.token_ids == (events[1].token_id,)


def test_a_stop_string_is_cut_out_and_everything_after_it(texts: Texts) -> None:
    choice = choice_of(texts, stop=("12 na", "the end"))
    deltas = fed(choice, tokens_of(texts))
    assert "".join(d.text for d in deltas) == "Zoë ate "
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert not choice.finished_by_worker


def test_text_held_back_for_a_stop_string_comes_out_at_the_end(texts: Texts) -> None:
    choice = choice_of(texts, stop=("end. And more",))
    assert "".join(d.text for d in fed(choice, tokens_of(texts))) == TEXT
    assert choice.finished_by_worker


def test_a_stop_string_within_min_tokens_does_not_stop(texts: Texts) -> None:
    events = tokens_of(texts)
    choice = choice_of(texts, stop=("ate", "left"), min_tokens=len(events) // 2)
    text = "".join(d.text for d in fed(choice, events))
    assert text == TEXT.split("left")[0]


def test_an_illegal_step_is_refused(texts: Texts) -> None:
    choice = choice_of(texts)
    fed(choice, tokens_of(texts))
    with pytest.raises(AssertionError):
        choice.move(ChoiceState.QUEUED)


def test_queue_tokenise_and_prefill_are_the_time_to_first_token() -> None:
    timeline = RequestTimeline(received=10.0, tokenize_began=10.5, tokenized=11.0)
    timeline.prefill_sent(12.0)
    timeline.prefill_started(15.0)
    timeline.token(0, 18.0)
    timeline.prefill_started(19.0)
    timeline.token(1, 20.0)
    timeline.token(1, 25.0)
    timeline.finished = 30.0
    timings = timeline.timings()
    assert (timings.queue_s, timings.tokenize_s, timings.prefill_s) == (4.5, 0.5, 3.0)
    assert (timings.ttft_s, timings.handoff_gap_s, timings.total_s) == (8.0, 2.0, 20.0)


def test_a_timeline_that_never_saw_a_token_has_no_times() -> None:
    timings = RequestTimeline(received=1.0).timings()
    assert timings.ttft_s is timings.queue_s is timings.handoff_gap_s is None
