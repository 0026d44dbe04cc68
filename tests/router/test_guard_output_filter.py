"""No part of a blocked term goes out, whatever the text is cut into."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fakes_house import Texts
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from core.request import FinishReason, TokenEvent, TokenLogprobs
from router.guard.normalization import normalized
from router.guard.output_filter import OutputFilter
from router.guard.policy import Action, Rule
from router.guard.prompt_check import check_prompt
from router.guard.prompt_scanner import PromptScanner
from router.guard.prompt_texts import RoleText
from router.guard.term_stream import Lexicon
from router.life.choice import Choice, ChoiceState, Delta, joined
from text.detokenizer import Detokenizer
from text.stop_strings import StopMatcher

TERMS = ("bomb", "bob omb", "ombre", "aab", "aaab", "机密文件", "密文", "b-17")
PIECES = [
    *(
        "bomb",
        "bo",
        "mb",
        "b",
        "a",
        "aa",
        "aaab",
        " ",
        "\n",
        "bob",
        "omb",
        "ombre",
        "bombs",
        ".",
        "re",
    ),
    *(
        "机密",
        "文件",
        "密文",
        "机",
        "\u200b",
        "\u00ad",
        "Ｂ",
        "о",
        "BOMB",
        "b-",
        "17",
        "x",
        "é",
        "🎈",
    ),
]
BROKEN_TEXT = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
CUTS = st.lists(st.integers(1, 4), max_size=40)
STOPS = st.sampled_from([(), ("x",), ("mb",), ("bomber",), ("文件x",)])
SLOW = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def rules(action: Action, *, whole_words: bool = True, replacement: str = "#") -> list[Rule]:
    return [
        Rule(
            name="terms",
            action=action,
            terms=TERMS,
            whole_words=whole_words,
            replacement=replacement,
        )
    ]


def deltas_of(texts: Texts, text: str, stops: Sequence[str], cuts: Sequence[int]) -> list[Delta]:
    """The text as a choice would give it out, `cuts` tokens at a time."""
    choice = Choice(0, Detokenizer(texts.tokenizer), StopMatcher(stops), 0)
    choice.move(ChoiceState.PREFILL)
    ids = texts.tokenizer.encode(text, add_special_tokens=False) + [2]
    gained = []
    for position, token_id in enumerate(ids):
        last = FinishReason.STOP if position == len(ids) - 1 else None
        logprobs = TokenLogprobs(-float(position), ())
        event = TokenEvent("t", 0, position, token_id, logprobs, last)
        gained += [delta] if (delta := choice.accept(event)) else []
    merged, sizes = [], iter(cuts)
    while gained:
        size = next(sizes, 1)
        together = joined(gained[:size])
        assert together is not None
        merged.append(together)
        gained = gained[size:]
    return merged


def filtered(deltas: Sequence[Delta], by: Sequence[Rule]) -> list[list[Delta]]:
    """What goes on after each delta."""
    one = OutputFilter(Lexicon(by))
    return [one.push(delta) for delta in deltas]


def whole(passed: Sequence[Sequence[Delta]]) -> Delta:
    together = joined([delta for deltas in passed for delta in deltas])
    assert together is not None
    return together


@SLOW
@given(BROKEN_TEXT, STOPS, CUTS, st.sampled_from(Action), st.booleans())
def test_how_a_text_is_cut_changes_nothing(
    texts: Texts, text: str, stops: Sequence[str], cuts: list[int], action: Action, words: bool
) -> None:
    by = rules(action, whole_words=words)
    one_by_one = whole(filtered(deltas_of(texts, text, stops, []), by))
    at_once = whole(filtered(deltas_of(texts, text, stops, [10**6]), by))
    cut = whole(filtered(deltas_of(texts, text, stops, cuts), by))
    assert one_by_one == at_once == cut


@SLOW
@given(BROKEN_TEXT, CUTS, st.booleans())
@example("a bo", [], True)
def test_no_part_of_a_blocked_term_is_ever_sent(
    texts: Texts, text: str, cuts: list[int], words: bool
) -> None:
    by = rules(Action.BLOCK, whole_words=words)
    sent = filtered(deltas_of(texts, text, (), cuts), by)
    scan = PromptScanner(by).scan(text)
    last = whole(sent)
    if not scan.findings:
        assert last.text == text and last.finish_reason is FinishReason.STOP
        return
    assert last.finish_reason is FinishReason.CONTENT_FILTER
    first = min(finding.start for finding in scan.findings)
    assert normalized(last.text).rstrip() == normalized(text)[:first].rstrip()
    assert last.text == text[: len(last.text)]
    spelled = texts.tokenizer.decode(last.token_ids)
    assert last.text.startswith(spelled), "no token of the term either"
    assert len(last.logprobs) == len(last.token_ids)


@SLOW
@given(BROKEN_TEXT, CUTS, st.booleans())
def test_answers_are_redacted_like_prompts(
    texts: Texts, text: str, cuts: list[int], words: bool
) -> None:
    by = rules(Action.REDACT, whole_words=words)
    sent = whole(filtered(deltas_of(texts, text, (), cuts), by))
    verdict = check_prompt(PromptScanner(by), [RoleText("user", text)])
    assert sent.text == verdict.texts[0]
    assert sent.finish_reason is FinishReason.STOP


@SLOW
@given(BROKEN_TEXT, CUTS)
@example("x bomb y", [])
@example("bomb 密文", [])
def test_tokens_spell_the_text_that_is_sent(texts: Texts, text: str, cuts: list[int]) -> None:
    """All but what is said to be unspelled: replacements, and rests of tokens cut by a term."""
    passed = filtered(deltas_of(texts, text, (), cuts), rules(Action.REDACT))
    deltas = [delta for each in passed for delta in each]
    spelled = "".join(delta.text for delta in deltas if not delta.unspelled)
    assert texts.tokenizer.decode([t for d in deltas for t in d.token_ids]) == spelled
    assert all(len(d.logprobs) == len(d.token_ids) for d in deltas)
    assert not any(d.token_ids for d in deltas if d.unspelled)


@SLOW
@given(BROKEN_TEXT, STOPS)
def test_no_token_goes_before_its_text(texts: Texts, text: str, stops: Sequence[str]) -> None:
    sent = ""
    ids: list[int] = []
    for passed in filtered(deltas_of(texts, text, stops, []), rules(Action.BLOCK)):
        for delta in passed:
            sent += delta.text
            ids += delta.token_ids
            if delta.finish_reason is not FinishReason.STOP:
                assert sent.startswith(texts.tokenizer.decode(ids).rstrip("\ufffd"))


@SLOW
@given(BROKEN_TEXT)
def test_only_what_may_become_a_term_is_withheld(texts: Texts, text: str) -> None:
    one = OutputFilter(Lexicon(rules(Action.BLOCK)))
    beginnings = {term[: i + 1] for term in TERMS for i in range(len(term))}
    longest_token = 8
    withheld = ""
    for delta in deltas_of(texts, text, (), []):
        withheld += delta.text
        withheld = withheld[sum(len(d.text) for d in one.push(delta)) :]
        ends = (normalized(withheld[k:]) for k in range(longest_token))
        # A token that ends in the middle of a character may have begun with a blank.
        incomplete = len(withheld) <= 1
        assert one.blocked or incomplete or any(end in beginnings for end in ends)


def test_what_is_allowed_is_no_finding(texts: Texts) -> None:
    by = [
        *rules(Action.BLOCK),
        Rule(name="fine", action=Action.ALLOW, terms=("bath bomb shop",)),
    ]
    for text, reason in [
        ("a bath bomb shop here", FinishReason.STOP),
        ("a bath bomb ship here", FinishReason.CONTENT_FILTER),
        ("bath bomb", FinishReason.CONTENT_FILTER),
    ]:
        sent = whole(filtered(deltas_of(texts, text, (), []), by))
        assert sent.finish_reason is reason, text
        assert sent.text == (text if reason is FinishReason.STOP else text[: text.index("bomb")])


def test_a_withheld_beginning_goes_out_at_the_end(texts: Texts) -> None:
    sent = filtered(deltas_of(texts, "it is a bom", (), []), rules(Action.BLOCK))
    assert whole(sent).text == "it is a bom"


@pytest.mark.parametrize("action", [Action.FLAG, Action.REDACT])
def test_every_finding_is_noted(texts: Texts, action: Action) -> None:
    one = OutputFilter(Lexicon(rules(action)))
    for delta in deltas_of(texts, "bomb, b-17 and 机密文件", (), []):
        one.push(delta)
    assert [rule.name for rule in one.rules][:2] == ["terms", "terms"]
    assert len(one.rules) in (3, 4)
