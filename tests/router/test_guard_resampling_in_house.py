"""Suspicious tokens over HTTP: withheld, compared, and drawn again where the policy matters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fakes_house import House, Texts
from fakes_persuadable import (
    POLICY,
    ask,
    metric,
    one_token,
    persuadable,
    place_of,
    resampling,
)
from fakes_worker import Trap

from core.request import AttemptFailed

SAYING = "It is a buzzard, I think."
ORDINARY = "It is a bird, I think."
CHECKS = "tandem_guard_token_checks_total"
RESAMPLES = "tandem_guard_resamples_total"
FIRST = "first_tokens = 1\n"
TERMS = "first_tokens = 0\n"


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    return tmp_path / "policies.toml"


def said(answer: dict[str, Any], choice: int = 0) -> tuple[str, str]:
    """Text and end of a choice."""
    found = answer["choices"][choice]
    text = found["message"]["content"] if "message" in found else found["text"]
    return text, found["finish_reason"]


async def streamed(h: House, **fields: Any) -> list[dict[str, Any]]:
    """The choices' chunks."""
    body = {
        "model": "fake",
        "messages": [{"role": "user", "content": "Which bird is it?"}],
        "max_tokens": 40,
        "user": "watched",
        "stream": True,
    }
    reply = await h.http.post("/v1/chat/completions", json=body | fields)
    assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]


def test_a_token_that_the_policy_would_change_is_drawn_again_and_never_streamed(
    texts: Texts, policies: Path
) -> None:
    language = persuadable(texts, ORDINARY, persuaded={(0, 0): ["No"]})
    rest = ORDINARY.removeprefix("It")

    async def test(h: House) -> None:
        chunks = await streamed(h, temperature=0.5, seed=9)
        assert "".join(c["delta"].get("content") or "" for c in chunks) == f"No{rest}"
        main, draw, resumed = h.p.attempts
        assert (draw.choices, draw.num_emitted, draw.sampling.max_tokens) == ((1 << 16,), 0, 1)
        assert (draw.sampling.temperature, draw.sampling.seed) == (1.0, main.sampling.seed)
        assert POLICY in texts.tokenizer.decode(draw.token_ids)
        assert POLICY not in texts.tokenizer.decode(main.token_ids)
        assert resumed.token_ids == (*main.token_ids, one_token(texts, "No"))
        assert (resumed.choices, resumed.sampling) == ((0,), main.sampling)
        assert metric(h, CHECKS, policy="watched", outcome="resampled") == 1
        assert metric(h, RESAMPLES, policy="watched") == 1

    resampling(texts, policies, language, test, FIRST)


def test_usage_is_of_the_tokens_that_stand(texts: Texts, policies: Path) -> None:
    language = persuadable(texts, SAYING, persuaded={(0, 0): ["No"]})

    async def test(h: House) -> None:
        answer = await ask(h)
        token_ids = answer["choices"][0]["token_ids"]
        assert token_ids[0] == one_token(texts, "No")
        assert answer["usage"]["completion_tokens"] == len(token_ids)
        assert answer["usage"]["prompt_tokens"] == len(h.p.attempts[0].token_ids)

    resampling(texts, policies, language, test, FIRST)


def test_an_answer_that_the_policy_would_not_change_is_told_as_it_is(
    texts: Texts, policies: Path
) -> None:
    async def test(h: House) -> None:
        assert said(await ask(h)) == (ORDINARY, "stop")
        assert metric(h, CHECKS, outcome="passed") == metric(h, CHECKS) == 4
        assert len(h.d.attempts) == 1, "nothing was begun anew"
        assert said(await ask(h, user="somebody else")) == (ORDINARY, "stop")
        assert metric(h, CHECKS) == 4, "others have another policy"

    resampling(texts, policies, persuadable(texts, ORDINARY), test, "first_tokens = 4\n")


def test_tokens_of_a_term_are_compared_and_no_others(texts: Texts, policies: Path) -> None:
    begin, end = place_of(texts, SAYING, "It is a"), place_of(texts, SAYING, "It is a buzzard")

    async def test(h: House) -> None:
        assert said(await ask(h)) == (SAYING, "stop")
        draws = [a for a in h.p.attempts if a.choices[0] >= 1 << 16]
        assert [a.num_emitted for a in draws] == list(range(begin, end))

    resampling(texts, policies, persuadable(texts, SAYING), test, TERMS)


@pytest.mark.parametrize(("most", "stands"), [(1, " buzz"), (2, " bird"), (3, " bird")])
def test_what_begins_a_term_again_is_drawn_again_but_not_for_ever(
    texts: Texts, policies: Path, most: int, stands: str
) -> None:
    place = place_of(texts, SAYING, "It is a")
    language = persuadable(texts, SAYING, persuaded={(0, place): [" buzz", " bird"]})

    async def test(h: House) -> None:
        assert said(await ask(h))[0] == f"It is a{stands}ard, I think."
        outcome = "same" if stands == " buzz" else "resampled"
        assert metric(h, CHECKS, outcome=outcome) == 1
        assert metric(h, RESAMPLES) == min(most, 2)
        draws = [a for a in h.p.attempts if a.choices[0] >> 16 and a.num_emitted == place]
        assert [a.choices[0] >> 16 for a in draws] == list(range(1, min(most, 2) + 1))
        assert [a.sampling.temperature for a in draws] == [1.5, 2.0][: len(draws)]

    resampling(texts, policies, language, test, TERMS + f"max_resamples = {most}\n")


def test_several_places_of_an_answer_are_drawn_again_one_after_the_other(
    texts: Texts, policies: Path
) -> None:
    persuaded = {(0, 0): ["That"], (0, 2): [" the"]}
    language = persuadable(texts, SAYING, persuaded=persuaded)

    async def test(h: House) -> None:
        assert said(await ask(h)) == ("That is the buzzard, I think.", "stop")
        assert metric(h, CHECKS, outcome="resampled") == 2

    resampling(texts, policies, language, test, "first_tokens = 3\n")


def test_a_drawn_token_may_end_the_answer(texts: Texts, policies: Path) -> None:
    language = persuadable(texts, SAYING, persuaded={(0, 1): ["<|im_end|>"]})

    async def test(h: House) -> None:
        assert said(await ask(h)) == ("It", "stop")
        assert said(await ask(h, max_tokens=1)) == ("It", "length")

    resampling(texts, policies, language, test, "first_tokens = 2\n")


def test_a_stop_string_may_end_with_a_drawn_token(texts: Texts, policies: Path) -> None:
    place = place_of(texts, SAYING, "It is a")
    language = persuadable(texts, SAYING, persuaded={(0, place): [" bird"]})

    async def test(h: House) -> None:
        answer = await ask(h, stop=["a bird"])
        assert said(answer) == ("It is ", "stop")
        assert answer["usage"]["completion_tokens"] == place + 1

    resampling(texts, policies, language, test, TERMS)


def test_choices_are_checked_side_by_side(texts: Texts, policies: Path) -> None:
    language = persuadable(texts, SAYING, "A bird.", persuaded={(1, 0): ["The"]})

    async def test(h: House) -> None:
        answer = await ask(h, n=2)
        assert [said(answer, i) for i in range(2)] == [(SAYING, "stop"), ("The bird.", "stop")]
        resumed = [a for p in h.prefill for a in p.attempts if a.num_emitted and a.choices[0] < 2]
        assert [a.choices for a in resumed] == [(1,)], "the other choice goes on where it was"

    resampling(texts, policies, language, test, FIRST)


async def held_before_the_term(h: House) -> asyncio.Task[dict[str, Any]]:
    """A request whose first token is out; D waits, and P has nothing more to do."""
    h.d.gate.clear()
    asking = asyncio.create_task(ask(h))
    await h.d.until(lambda w: len(w.attempts) == 1)
    await h.p.until(lambda w: len(w.ended) == 1)
    return asking


async def refused(h: House) -> None:
    h.p.failures.append(AttemptFailed("", "invalid_request", "not today", False))


async def unanswered(h: House) -> None:
    h.p.gate.clear()


@pytest.mark.parametrize(("fault", "outcome"), [(refused, "failed"), (unanswered, "late")])
@pytest.mark.parametrize("word", ["allow", "block"])
def test_what_can_not_be_compared_is_told_or_ends_the_answer_as_the_policy_says(
    texts: Texts,
    policies: Path,
    word: str,
    fault: Callable[[House], Awaitable[None]],
    outcome: str,
) -> None:
    async def test(h: House) -> None:
        asking = await held_before_the_term(h)
        await fault(h)
        h.d.gate.set()
        answer = await asking
        blocked = ("It is a", "content_filter")
        assert said(answer) == (blocked if word == "block" else (SAYING, "stop"))
        assert metric(h, CHECKS, outcome=outcome) >= 1
        assert not metric(h, RESAMPLES)

    rules = TERMS + f'on_check_failure = "{word}"\n'
    if outcome == "late":
        rules += "timeout_s = 0.05\n"
    resampling(texts, policies, persuadable(texts, SAYING), test, rules)


@pytest.mark.parametrize("word", ["allow", "block"])
def test_a_choice_has_so_many_checks(texts: Texts, policies: Path, word: str) -> None:
    async def test(h: House) -> None:
        blocked = ("It is", "content_filter")
        assert said(await ask(h)) == (blocked if word == "block" else (ORDINARY, "stop"))
        assert metric(h, CHECKS, outcome="passed") == 2
        assert metric(h, CHECKS, outcome="exhausted") == (1 if word == "block" else 2)

    rules = f'first_tokens = 4\nmax_checks = 2\non_check_failure = "{word}"\n'
    resampling(texts, policies, persuadable(texts, ORDINARY), test, rules)


def test_the_answer_is_the_same_when_a_worker_dies(texts: Texts, policies: Path) -> None:
    persuaded = {(0, 0): ["That"], (0, 3): [" bird"]}
    rules = "first_tokens = 5\n"
    places = range(len(texts.tokenizer.encode(SAYING, False)))
    answers = set()
    for position in (None, *places):
        language = persuadable(texts, SAYING, persuaded=persuaded)

        async def test(h: House) -> None:
            answers.add(said(await ask(h)))

        trap = Trap(position=position)
        resampling(texts, policies, language, test, rules, prefill=2, decode=2, trap=trap)
        assert trap.position is None
    assert len(answers) == 1
