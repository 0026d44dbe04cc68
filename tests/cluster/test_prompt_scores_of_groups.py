"""A worker of two ranks scores a prompt as a single one does, rounding apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes_byte_model import write_byte_model
from fakes_real_house import CHUNK_TOKENS, real_house, settings, until_whole

from core.request import Phase
from state.memory import MemoryStore

PROMPT = "Ranks of a group meet within each layer, and all of them have all logits. " * 3
# Nothing here is about deadlines: ranks take turns on a busy machine
SETTINGS = ("router.mode=combined", "parallel.step_timeout_s=120")


def test_a_group_scores_a_prompt_as_a_lone_rank(tmp_path: Path) -> None:
    model = f"model.model={write_byte_model(tmp_path / 'model')}"
    alone, together = (scores(model, f"parallel.tensor_parallel_size={n}") for n in (1, 2))
    assert len(alone) == len(together) > 2 * CHUNK_TOKENS
    for one, other in zip(alone[1:], together[1:], strict=True):
        assert [own["logprob"] for own in other.values()] == pytest.approx(
            [own["logprob"] for own in one.values()], abs=1e-4
        )


def scores(*overrides: str) -> list[dict[str, Any]]:
    config, store = settings(*SETTINGS, *overrides), MemoryStore()
    with real_house() as house:
        member = house.worker(config, Phase.DECODE, store)
        front = house.front(config, store)
        house.loop.run(front.until_connected(1))
        body = {"model": front.model, "prompt": PROMPT, "max_tokens": 3, "prompt_logprobs": 0}
        response = house.loop.run(front.http.post("/v1/completions", json=body))
        house.loop.run(until_whole(member.address))
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["choices"][0]["prompt_logprobs"]
    return found
