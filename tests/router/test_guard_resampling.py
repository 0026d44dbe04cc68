"""Decisions of resampling: what is suspicious, what stands, and how other tokens are drawn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from fakes_house import Texts
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ConfigError
from core.request import SamplingParams, TokenLogprobs
from engine.random_numbers import uniform
from router.guard.policy import Action, Rule
from router.guard.policy_file import read_policies
from router.guard.resampling.policy_prompt import placed_before, under_policy
from router.guard.resampling.rules import (
    TOP_TOKENS,
    OnFailure,
    ResampleRules,
    draw_counter,
    draw_sampling,
)
from router.guard.resampling.token_check import CheckOutcome, Token, TokenCheck
from router.guard.resampling.token_watch import TokenWatch, new_watch
from router.guard.term_stream import Lexicon
from router.request_spec import MAX_CHOICES, ChatPrompt

POLICIES = """
default = "p"
[policies.p]
[policies.p.resample]
prompt = "Be good."
"""


def rules(
    *, max_resamples: int = 2, on_check_failure: OnFailure = OnFailure.BLOCK
) -> ResampleRules:
    return ResampleRules(
        policy="p",
        prompt="Be good.",
        threshold=0.35,
        first_tokens=4,
        max_checks=8,
        max_resamples=max_resamples,
        temperature_step=0.5,
        timeout_s=1.0,
        on_check_failure=on_check_failure,
    )


def token(token_id: int, likeliest: int) -> Token:
    """Drawn where another one may be the likeliest."""
    return Token(token_id, TokenLogprobs(-1.0, ((likeliest, math.log(0.9)),)), None)


OWN = token(7, likeliest=7)


def test_a_token_stands_where_the_policy_would_have_said_much_the_same() -> None:
    check = TokenCheck(rules(), OWN)
    check.drawn(token(8, likeliest=7), suspicious=True)
    assert (check.outcome, check.stands, check.num_resamples) == (CheckOutcome.PASSED, OWN, 0)
    assert check.divergence == 0.0


def test_the_draw_stands_where_the_policy_would_have_said_something_else() -> None:
    check = TokenCheck(rules(), OWN)
    other = token(8, likeliest=8)
    assert check.next_number == 1
    check.drawn(other, suspicious=False)
    assert (check.outcome, check.stands) == (CheckOutcome.RESAMPLED, other)
    assert check.divergence is not None and check.divergence > 0.35


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_draw_that_is_suspicious_again_is_replaced_so_often(most: int) -> None:
    check = TokenCheck(rules(max_resamples=most), OWN)
    while check.outcome is None:
        check.drawn(token(10 + check.next_number, likeliest=8), suspicious=True)
    assert check.num_resamples == most
    assert check.stands is not None and check.stands.token_id == 10 + most


def test_the_same_token_drawn_is_the_one_that_came() -> None:
    check = TokenCheck(rules(), OWN)
    check.drawn(token(7, likeliest=8), suspicious=False)
    assert check.outcome is CheckOutcome.SAME and check.stands is OWN


@pytest.mark.parametrize("word", OnFailure)
def test_a_failure_leaves_what_stood_or_nothing(word: OnFailure) -> None:
    for num_drawn in (0, 1):
        check = TokenCheck(rules(on_check_failure=word), OWN)
        other = token(8, likeliest=8)
        for _ in range(num_drawn):
            check.drawn(other, suspicious=True)
        check.failed(CheckOutcome.LATE)
        stood = other if num_drawn else OWN
        assert check.stands == (stood if word is OnFailure.ALLOW else None)
        assert check.outcome is CheckOutcome.LATE


def test_draws_get_hotter_and_ask_for_one_token_each() -> None:
    asked = SamplingParams(max_tokens=9, temperature=0.0, top_p=0.5, seed=3, prompt_logprobs=2)
    first, second = (draw_sampling(asked, rules(), position=4, number=i) for i in (1, 2))
    assert (first.temperature, second.temperature) == (0.5, 1.0)
    assert first.max_tokens == 5 and first.logprobs == TOP_TOKENS
    assert (first.top_p, first.seed, first.prompt_logprobs) == (0.5, 3, None)


def test_no_two_draws_of_a_request_share_a_random_number() -> None:
    choices = [0, 1, MAX_CHOICES - 1]
    counters = choices + [draw_counter(choice, n) for choice in choices for n in range(1, 17)]
    assert len(set(counters)) == len(counters) and max(counters) < 2**32
    places = [(counter, position) for counter in counters for position in range(20)]
    numbers = uniform([5] * len(places), [c for c, _ in places], [p for _, p in places])
    assert len(set(numbers.tolist())) == len(places)


def watch_for(texts: Texts, *terms: str, whole_words: bool = True) -> TokenWatch:
    rule = Rule(name="r", action=Action.FLAG, terms=terms, whole_words=whole_words)
    watch = new_watch(texts.tokenizer, Lexicon([rule]))
    assert watch is not None
    return watch


def suspicious_texts(texts: Texts, watch: TokenWatch, text: str) -> list[str]:
    found = []
    for token_id in texts.tokenizer.encode(text, False):
        watch = watch.after(token_id)
        if watch.suspicious:
            found.append(texts.tokenizer.token_text(token_id))
    return found


def test_tokens_that_make_a_term_are_suspicious(texts: Texts) -> None:
    watch = watch_for(texts, "falcon")
    assert "".join(suspicious_texts(texts, watch, "It is a falcon, but no bird.")) == " falcon"
    assert not suspicious_texts(texts, watch, "A fine day for others")
    inside = watch_for(texts, "lco", whole_words=False)
    assert "con" in suspicious_texts(texts, inside, "It is a falcon.")[-1]
    assert new_watch(texts.tokenizer, Lexicon([])) is None


def test_a_term_is_found_though_its_characters_are_cut_into_tokens(texts: Texts) -> None:
    watch = watch_for(texts, "机密文件")
    assert suspicious_texts(texts, watch, "这是机密文件。")


WORDS = (
    " fal",
    "con",
    "fal",
    " project",
    " fal con",
    ".",
    " 机密",
    "文件",
    "é",
    "🎈",
    "<|im_end|>",
)


def test_what_was_drawn_in_vain_leaves_no_trace(texts: Texts) -> None:
    start = watch_for(texts, "falcon", "project falcon", "机密文件")

    @settings(max_examples=60)
    @given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS)), max_size=8))
    def check(pairs: list[tuple[str, str]]) -> None:
        tried, straight = start, start
        for word, other in pairs:
            for token_id in texts.tokenizer.encode(other, False):
                tried.after(token_id)
            for token_id in texts.tokenizer.encode(word, False):
                tried, straight = tried.after(token_id), straight.after(token_id)
                assert tried.suspicious == straight.suspicious
                assert tried.pending == straight.pending
                assert tried.stream.open == straight.stream.open

    check()


def test_the_policy_is_said_before_the_clients_system_message() -> None:
    user = {"role": "user", "content": "Hi"}
    bare = under_policy(ChatPrompt(messages=(user,)), "Be good.")
    assert [m["content"] for m in bare.messages] == ["Be good.", "Hi"]
    assert bare.messages[0]["role"] == "system"
    told = ChatPrompt(messages=({"role": "system", "content": "Be brief."}, user))
    both = under_policy(told, "Be good.")
    assert [m["content"] for m in both.messages] == ["Be good.\n\nBe brief.", "Hi"]
    assert told.messages[0]["content"] == "Be brief."


def test_what_begins_every_text_stays_at_the_beginning() -> None:
    assert placed_before((1, 5, 6), (8, 9), (1,)) == (1, 8, 9, 5, 6)
    assert placed_before((5, 6), (8, 9), (1,)) == (8, 9, 5, 6), "cut off with the prompt's head"
    assert placed_before((1, 5, 6), (8, 9), ()) == (8, 9, 1, 5, 6), "a token like any other here"


def test_a_policy_that_asks_for_it_has_rules_and_others_have_none(tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    file.write_text(POLICIES)
    policy = read_policies(file).policies["p"]
    assert policy.resampling is not None
    assert policy.resampling.threshold == 0.35 and policy.resampling.policy == "p"
    assert policy.resampling.on_check_failure is OnFailure.BLOCK
    file.write_text('default = "p"\n[policies.p]\n')
    assert read_policies(file).policies["p"].resampling is None


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("first_tokens = 0", "no token would be suspicious"),
        ("threshold = nan", "policies.p.resample.threshold"),
        ("threshold = -0.1", "policies.p.resample.threshold"),
        ("temperature_step = 0", "policies.p.resample.temperature_step"),
        ("max_resamples = 0", "policies.p.resample.max_resamples"),
        ('on_check_failure = "redact"', "policies.p.resample.on_check_failure"),
        ("treshold = 1", "policies.p.resample.treshold"),
    ],
)
def test_rules_that_make_no_sense_are_refused(tmp_path: Path, setting: str, said: str) -> None:
    file = tmp_path / "policies.toml"
    file.write_text(POLICIES + setting + "\n")
    with pytest.raises(ConfigError) as caught:
        read_policies(file)
    assert said in caught.value.message


def test_only_terms_of_answers_that_are_not_allowed_are_watched(tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    text = POLICIES + "first_tokens = 0\n"
    for name, action, stage in (
        ("a", "allow", "output"),
        ("b", "flag", "input"),
        ("c", "flag", "output"),
    ):
        text += f'[[policies.p.rules]]\nname = "{name}"\naction = "{action}"\n'
        text += f'terms = ["{name}"]\nstages = ["{stage}"]\n'
    file.write_text(text)
    assert [rule.name for rule in read_policies(file).policies["p"].watched_rules] == ["c"]
