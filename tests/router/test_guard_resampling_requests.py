"""Resampling beside all else that a request may ask for, and what is told of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes_house import House, Texts
from fakes_persuadable import POLICY, ask, metric, persuadable, place_of, resampling

from core.request import Attempt
from core.trace_context import TraceContext, new_span_id, new_trace_id
from router.life.check_timeline import CheckTimeline
from router.life.timeline import RequestTimeline
from router.observe.request_record import RequestRecord
from router.observe.request_spans import request_spans

SAYING = "It is a buzzard, I think."
ORDINARY = "It is a bird, I think."
CHECKS = "tandem_guard_token_checks_total"
FIRST = "first_tokens = 1\n"


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    return tmp_path / "policies.toml"


def drawn(h: House) -> list[Attempt]:
    """Attempts that drew a token under the policy."""
    return [attempt for attempt in h.p.attempts if attempt.choices[0] >> 16]


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        (
            {"messages": user("Hi")},
            f"<|im_start|>system\n{POLICY}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
        ),
        (
            {"messages": [{"role": "system", "content": "Be brief."}, *user("Hi")]},
            f"<|im_start|>system\n{POLICY}\n\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>",
        ),
        ({"prompt": "Once upon a time"}, f"{POLICY}\n\nOnce upon a time"),
        ({"prompt": [504, 7565]}, f"{POLICY}\n\n"),
        ({"messages": user("Hi"), "truncate_prompt_tokens": 8}, f"{POLICY}\n\n"),
    ],
)
def test_the_policy_comes_before_every_kind_of_prompt(
    texts: Texts, policies: Path, fields: dict[str, Any], read: str
) -> None:
    async def test(h: House) -> None:
        answer = await ask(h, **fields)
        main, draw = h.p.attempts
        spelled = texts.tokenizer.decode(draw.token_ids, skip_special_tokens=False)
        assert spelled.startswith(read)
        assert answer["usage"]["prompt_tokens"] == len(main.token_ids)
        own = fields.get("prompt")
        if own is None and "truncate_prompt_tokens" not in fields:
            return
        assert draw.token_ids[-len(main.token_ids) :] == main.token_ids

    resampling(texts, policies, persuadable(texts, ORDINARY), test, FIRST)


def test_log_probabilities_are_told_as_far_as_they_were_asked_for(
    texts: Texts, policies: Path
) -> None:
    language = persuadable(texts, SAYING, persuaded={(0, 0): ["No"]})

    async def test(h: House) -> None:
        for fields, width in (({}, None), ({"logprobs": 0}, 0), ({"logprobs": 1}, 1)):
            answer = await ask(h, prompt="Hi", **fields)
            told = answer["choices"][0]["logprobs"]
            if width is None:
                assert told is None
                continue
            assert told["tokens"][0] == "No"
            assert told["token_logprobs"][0] == pytest.approx(math.log(0.9))
            assert {len(top or {}) for top in told["top_logprobs"]} <= {width, width + 1}

    resampling(texts, policies, language, test, FIRST)


def test_the_best_of_several_checked_choices_is_told(texts: Texts, policies: Path) -> None:
    language = persuadable(texts, SAYING, SAYING, persuaded={(0, 0): ["No"], (1, 0): ["No"]})

    async def test(h: House) -> None:
        answer = await ask(h, prompt="Hi", best_of=2)
        assert [c["text"] for c in answer["choices"]] == [f"No{SAYING.removeprefix('It')}"]
        assert metric(h, CHECKS, outcome="resampled") == 2

    resampling(texts, policies, language, test, FIRST)


def test_the_first_draw_computes_the_prompt_for_those_of_all_choices(
    texts: Texts, policies: Path
) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        asking = asyncio.create_task(ask(h, n=3))
        await h.d.until(lambda w: len(w.attempts) == 1)
        await h.p.until(lambda w: len(w.ended) == 1)
        h.p.gate.clear()
        h.d.gate.set()
        await h.p.until(lambda w: len(w.attempts) == 2)
        await h.d.until(lambda w: len(w.ended) == 1)
        assert len(drawn(h)) == 1, "the others wait for it"
        h.p.gate.set()
        answer = await asking
        assert [c["message"]["content"] for c in answer["choices"]] == [SAYING] * 3
        assert len(drawn(h)) == metric(h, CHECKS, outcome="passed") == 6

    language = persuadable(texts, SAYING, SAYING, SAYING)
    resampling(texts, policies, language, test, "first_tokens = 0\n")


def test_beams_are_refused_and_a_prompt_alone_is_not_checked(texts: Texts, policies: Path) -> None:
    async def test(h: House) -> None:
        body = {"model": "fake", "prompt": "Hi", "max_tokens": 4, "use_beam_search": True}
        reply = await h.http.post("/v1/completions", json=body | {"user": "watched"})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "use_beam_search"
        await ask(h, prompt="Hi", echo=True, max_tokens=0)
        assert not drawn(h)

    resampling(texts, policies, persuadable(texts, SAYING), test, FIRST)


def test_a_client_that_leaves_during_a_check_leaves_nothing(texts: Texts, policies: Path) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        asking = asyncio.create_task(ask(h))
        await h.d.until(lambda w: len(w.attempts) == 1)
        await h.p.until(lambda w: len(w.ended) == 1)
        h.p.gate.clear()
        h.d.gate.set()
        await h.p.until(lambda w: len(w.attempts) == 2)
        asking.cancel()
        await asyncio.wait({asking})
        await h.p.until(lambda w: not w.num_open)
        h.p.gate.set()

    resampling(texts, policies, persuadable(texts, SAYING * 3), test, "first_tokens = 0\n")


def test_an_operator_ends_a_request_during_a_check(texts: Texts, policies: Path) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        headers = {"x-request-id": "mine"}
        body = {"model": "fake", "prompt": "Hi", "max_tokens": 40, "user": "watched"}
        asking = asyncio.create_task(h.http.post("/v1/completions", json=body, headers=headers))
        await h.d.until(lambda w: len(w.attempts) == 1)
        await h.p.until(lambda w: len(w.ended) == 1)
        h.p.gate.clear()
        h.d.gate.set()
        await h.p.until(lambda w: len(w.attempts) == 2)
        assert (await h.http.post("/v1/requests/mine/cancel")).status_code == 200
        assert "cancelled" in (await asking).text
        h.p.gate.set()

    resampling(texts, policies, persuadable(texts, SAYING), test, "first_tokens = 0\n")


BLOCKED = """
[policies.watched]
builtin = "off"
[[policies.watched.rules]]
name = "birds"
action = "block"
terms = ["buzzard"]
[policies.watched.resample]
prompt = "Never name the bird."
first_tokens = 0
"""


def test_what_stands_still_passes_the_filter_and_other_choices_go_on(
    texts: Texts, policies: Path
) -> None:
    long = "It is a fine day. " * 6

    async def test(h: House) -> None:
        answer = await ask(h, n=2, max_tokens=100)
        ends = [(c["message"]["content"], c["finish_reason"]) for c in answer["choices"]]
        assert ends == [("It is a ", "content_filter"), (long, "stop")]

    language = persuadable(texts, SAYING * 9, long)
    resampling(texts, policies, language, test, policy=BLOCKED)


def test_checks_are_shown_with_their_request(texts: Texts, policies: Path) -> None:
    language = persuadable(texts, SAYING, persuaded={(0, 0): ["No"]})

    async def test(h: House) -> None:
        answer = await ask(h)
        (shown,) = (await h.http.get(f"/debug/requests/{answer['id']}")).json()["requests"]
        resampled, *passed = shown["token_checks"]
        place = place_of(texts, SAYING, "It is a")
        assert (resampled["position"], resampled["outcome"]) == (0, "resampled")
        assert resampled["divergence"] > 0.35 and resampled["num_resamples"] == 1
        assert resampled["began_s"] <= resampled["ended_s"]
        assert _positions(passed) == [place, place + 1]
        assert {(c["outcome"], c["divergence"], c["num_resamples"]) for c in passed} == {
            ("passed", 0.0, 0)
        }
        assert [a["number"] for a in shown["attempts"]] == [1, 2], "draws are none of its attempts"
        assert shown["num_attempts"] == 2

    resampling(texts, policies, language, test, FIRST)


def _positions(checks: Sequence[dict[str, Any]]) -> list[int]:
    return [check["position"] for check in checks]


def test_a_check_is_a_span_of_its_request() -> None:
    check = CheckTimeline(
        choice=0,
        position=3,
        began=1.5,
        ended=2.0,
        divergence=0.5,
        num_resamples=1,
        outcome="resampled",
    )
    record = RequestRecord(
        request_id="r",
        client_id="",
        operation="chat",
        model="m",
        timeline=RequestTimeline(1.0, finished=3.0, checks=[check]),
        wall_offset_ns=0,
    )
    trace = TraceContext(new_trace_id(), new_span_id(), sampled=True)
    (span,) = [s for s in request_spans(record, trace) if s.name == "token_check"]
    assert (span.start_ns, span.end_ns, span.parent_id) == (
        1_500_000_000,
        2_000_000_000,
        trace.span_id,
    )
    assert span.attributes["tandem.token_check.divergence"] == 0.5
    assert span.attributes["tandem.token_check.outcome"] == "resampled"
