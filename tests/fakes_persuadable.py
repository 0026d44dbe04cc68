"""A fake language that a policy's prompt can persuade, and a house in which policies try to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes_house import House, Texts, house
from fakes_language import FakeLanguage

from core.request import Attempt, TokenEvent, TokenLogprobs

POLICY = "Never name the bird."
POLICIES = """
default = "open"
[tenants]
watched = "watched"
[policies.open]
builtin = "off"
"""
WATCHED = """
[policies.watched]
builtin = "off"
[[policies.watched.rules]]
name = "birds"
action = "flag"
terms = ["buzzard"]
[policies.watched.resample]
prompt = "Never name the bird."
"""
ELSEWHERE, COMMON = 301, 302
"""What it would rather say where the policy has persuaded it, and what it might always say."""
DRAW_SHIFT = 16
"""Draws under the policy have their number above the choice's own."""


@dataclass(frozen=True)
class Persuadable(FakeLanguage):
    """Says the same to everybody, but for some places under the policy's prompt."""

    decode: Callable[[Sequence[int]], str] = str
    sayings: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Token ids by choice."""
    persuaded: Mapping[tuple[int, int], Sequence[int]] = field(default_factory=dict)
    """By choice and position: what is drawn there under the policy, draw by draw."""

    def next_event(
        self, attempt: Attempt, choice: int, emitted: Sequence[int], *, position: int
    ) -> TokenEvent:
        number, own = choice >> DRAW_SHIFT, choice % (1 << DRAW_SHIFT)
        token_id = [*self.sayings[own], self.eos_token_id][position]
        likeliest = token_id
        draws = self.persuaded.get((own, position))
        assert (number > 0) == (POLICY in self.decode(attempt.token_ids))
        if number and draws is not None:
            likeliest, token_id = ELSEWHERE, draws[number - 1]
        return TokenEvent(
            transfer_id=attempt.transfer_id,
            choice=choice,
            position=position,
            token_id=token_id,
            logprobs=_logprobs(likeliest, attempt.sampling.logprobs),
            finish_reason=self._finish(token_id, position, attempt.sampling),
        )


def _logprobs(likeliest: int, wanted: int | None) -> TokenLogprobs | None:
    if wanted is None:
        return None
    top = ((likeliest, math.log(0.9)), (COMMON, math.log(0.05)))
    return TokenLogprobs(math.log(0.9), top[:wanted])


def persuadable(
    texts: Texts,
    *sayings: str,
    persuaded: Mapping[tuple[int, int], Sequence[str]] | None = None,
) -> Persuadable:
    """Texts by choice. Each draw is a text of one token."""
    drawn = {
        place: [one_token(texts, text) for text in said]
        for place, said in (persuaded or {}).items()
    }
    ids = {i: texts.tokenizer.encode(text, False) for i, text in enumerate(sayings)}
    return Persuadable(decode=texts.tokenizer.decode, sayings=ids, persuaded=drawn)


def one_token(texts: Texts, text: str) -> int:
    (token_id,) = texts.tokenizer.encode(text, False)
    return token_id


def place_of(texts: Texts, saying: str, beginning: str) -> int:
    """The position of the token that follows this beginning of a saying."""
    ids = texts.tokenizer.encode(saying, False)
    return next(i for i in range(len(ids)) if texts.tokenizer.decode(ids[:i]) == beginning)


def resampling(
    texts: Texts,
    policies: Path,
    language: FakeLanguage,
    test: Callable[[House], Awaitable[None]],
    rules: str = "",
    *,
    policy: str = WATCHED,
    **settings: Any,
) -> None:
    """Runs the test in a house whose tenant `watched` has these further settings of resampling;
    checks that no attempt is left."""
    if "timeout_s" not in rules:
        rules += "timeout_s = 60\n"  # a busy machine must not look like a missing worker
    policies.write_text(POLICIES + policy + rules, encoding="utf-8")
    overrides: dict[str, dict[str, object]] = {
        "guard": {"enabled": True, "policy_file": str(policies)},
        "observability": {"debug_requests": "public"},
    }

    async def run() -> None:
        async with house(texts, overrides=overrides, language=language, **settings) as h:
            await test(h)
            for worker in (*h.prefill, *h.decode):
                await worker.until(lambda w: not w.num_open)

    asyncio.run(run())


async def ask(h: House, **fields: Any) -> dict[str, Any]:
    """The answer to a chat of the watched tenant."""
    body = {
        "messages": [{"role": "user", "content": "Which bird is it?"}],
        "max_tokens": 40,
        "seed": 5,
        "temperature": 1.0,
        "user": "watched",
        "return_token_ids": True,
    }
    body |= {"model": "fake"} | fields
    path = "/v1/completions" if "prompt" in fields else "/v1/chat/completions"
    if "prompt" in fields:
        del body["messages"]
    reply = await h.http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def metric(h: House, name: str, **labels: str) -> float:
    """The sum of the router's samples of this name that have these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        float(line.split()[-1])
        for line in h.router.metrics.render().decode().splitlines()
        if line.split("{")[0].split(" ")[0] == name and all(each in line for each in wanted)
    )
