"""Resampling by the real model of bytes, on P and D and on D alone.

Where every token is suspicious, every difference is far, and draws are all but greedy, the answer
must be the one that the model gives to the conversation with the policy's prompt in it: each of its
tokens comes from one draw, at one place, after a resume.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fakes_cases import CaseHouse, case_house, settings
from fakes_real_house import Front

PROMPT = "Answer in capitals, and never say why."
NUM_TOKENS = 10
POLICIES = f"""
default = "open"
[tenants]
cold = "cold"
warm = "warm"
near = "near"
[policies.open]
builtin = "off"
[policies.cold]
builtin = "off"
[policies.cold.resample]
prompt = "{PROMPT}"
threshold = 0.0
first_tokens = 64
max_resamples = 1
temperature_step = 1e-4
timeout_s = 60
[policies.warm]
builtin = "off"
[policies.warm.resample]
prompt = "{PROMPT}"
first_tokens = 6
timeout_s = 60
[policies.near]
builtin = "off"
[policies.near.resample]
prompt = "{PROMPT}"
threshold = 1000.0
first_tokens = 6
timeout_s = 60
"""
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string", "pattern": "^[a-z]{6}$"}},
    "required": ["id"],
    "additionalProperties": False,
}
Json = dict[str, Any]


@dataclass(frozen=True)
class Guarded:
    """A house, and its routers: P and D apart, and D alone."""

    house: CaseHouse
    split: Front
    combined: Front

    def ask(self, front: Front, user: str, *, system: str | None = None, **fields: Any) -> Json:
        """The answer to a chat."""
        messages = [{"role": "user", "content": "Tell me something."}]
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        body: Json = {
            "model": front.model,
            "messages": messages,
            "max_tokens": NUM_TOKENS,
            "temperature": 0.0,
            "seed": 3,
            "user": user,
            "return_token_ids": True,
            "ignore_eos": True,
        }
        response = self.house.run(front.http.post("/v1/chat/completions", json=body | fields))
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    def ids(self, front: Front, user: str, **fields: Any) -> list[list[int]]:
        """Token ids of each choice."""
        return [c["token_ids"] for c in self.ask(front, user, **fields)["choices"]]

    def checks(self, front: Front, answer: Json) -> list[Json]:
        """What was told of its checks."""
        response = self.house.run(front.http.get(f"/debug/requests/{answer['id']}"))
        (shown,) = response.json()["requests"]
        found: list[Json] = shown["token_checks"]
        return found


@pytest.fixture(scope="module")
def guarded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    policies = tmp_path_factory.mktemp("policies") / "policies.toml"
    policies.write_text(POLICIES)
    guard = (
        "guard.enabled=true",
        f"guard.policy_file={policies}",
        "observability.debug_requests=public",
    )
    with case_house(settings(model, *guard)) as house:
        combined = house.add_front("router.mode=combined", *guard)
        house.run(combined.until_connected(2))
        yield Guarded(house, house.router, combined)


def test_where_everything_is_far_the_answer_is_the_policys(guarded: Guarded) -> None:
    for front in (guarded.split, guarded.combined):
        answer = guarded.ask(front, "cold")
        expected = guarded.ids(front, "open", system=PROMPT)
        assert answer["choices"][0]["token_ids"] == expected[0]
        assert expected != guarded.ids(front, "open"), "the policy changes something"
        checks = guarded.checks(front, answer)
        assert [check["position"] for check in checks] == list(range(NUM_TOKENS))
        assert {check["outcome"] for check in checks} <= {"resampled", "same"}
        assert all(check["divergence"] > 0.0 for check in checks)


def test_the_same_seed_gives_the_same_answer_whoever_decodes(guarded: Guarded) -> None:
    fields: Json = {"temperature": 1.0, "n": 3, "max_tokens": 16}
    first = guarded.ids(guarded.split, "warm", **fields)
    assert first == guarded.ids(guarded.split, "warm", **fields)
    assert first == guarded.ids(guarded.combined, "warm", **fields)
    plain = guarded.ids(guarded.split, "open", **fields)
    assert all(ours != others for ours, others in zip(first, plain, strict=True))
    assert first != guarded.ids(guarded.split, "warm", seed=4, **fields)


def test_where_nothing_is_far_the_answer_is_as_without_a_policy(guarded: Guarded) -> None:
    fields: Json = {"temperature": 1.0, "n": 2, "max_tokens": 16}
    for front in (guarded.split, guarded.combined):
        answer = guarded.ask(front, "near", **fields)
        ids = [choice["token_ids"] for choice in answer["choices"]]
        assert ids == guarded.ids(front, "open", **fields)
        checks = guarded.checks(front, answer)
        assert len(checks) == 12 and {check["outcome"] for check in checks} == {"passed"}


def test_an_answer_that_follows_a_schema_still_does(guarded: Guarded) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    for front in (guarded.split, guarded.combined):
        answer = guarded.ask(
            front,
            "cold",
            response_format=wanted,
            max_tokens=60,
            ignore_eos=False,
            temperature=1.0,
            n=2,
        )
        for choice in answer["choices"]:
            assert choice["finish_reason"] == "stop"
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
        outcomes = {check["outcome"] for check in guarded.checks(front, answer)}
        assert "resampled" in outcomes and outcomes <= {"resampled", "same"}
