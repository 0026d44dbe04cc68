"""Families with windows and angles of their own, through scheduler, pool and prefix cache."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import fakes_tiny_model
import pytest

from core.config import load_config
from core.request import Attempt, SamplingParams
from decode_worker.offline import OfflineEngine

NUM_TOKENS = 30
GEMMA = {"pad_token_id": 0, "head_dim": 12, "sliding_window": 20}
MODELS: dict[str, dict[str, Any]] = {
    "Mistral": {"sliding_window": 20},
    "Qwen3": {"head_dim": 12},
    "Gemma2": GEMMA | {"attn_logit_softcapping": 2.0},
    "Gemma3": GEMMA | {"num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2},
    "Phi3": {"pad_token_id": 0, "sliding_window": 33},
    "Phi": {},
}


def attempt(name: str, token_ids: list[int]) -> Attempt:
    return Attempt(
        request_id=name,
        transfer_id=name,
        model="tiny",
        token_ids=tuple(token_ids),
        num_prompt_tokens=len(token_ids),
        choices=(0,),
        sampling=SamplingParams(NUM_TOKENS, temperature=0.0, ignore_eos=True),
        deadline_s=600.0,
    )


@pytest.mark.parametrize("family", MODELS)
def test_a_crowded_engine_answers_as_transformers_does(family: str, tmp_path: Path) -> None:
    tiny = fakes_tiny_model.make(family, tmp_path, **MODELS[family])
    settings = [
        f"model.model={tmp_path}",
        "model.dtype=float32",
        "parallel.num_threads=1",
        "cache.block_size=8",
        "cache.num_blocks=40",  # for six sequences of up to 19 blocks: some must give way
        "scheduler.max_num_seqs=6",
        "scheduler.prefill_chunk_tokens=23",
        "model.max_model_len=160",
    ]
    engine = OfflineEngine.load(load_config(environ={}, overrides=settings))
    rng = random.Random(1)
    shared = [rng.randrange(131) for _ in range(50)]
    prompts = {
        str(i): shared[: 8 * i] + [rng.randrange(131) for _ in range(120 - 17 * i)]
        for i in range(6)
    }
    for _ in range(2):  # the second time on cached prefixes
        outputs = engine.generate([attempt(name, ids) for name, ids in prompts.items()])
        for name, ids in prompts.items():
            tokens = [event.token_id for event in outputs[name, 0]]
            assert tokens == tiny.greedy(ids, NUM_TOKENS), name
    engine.engine.pool.check_integrity()
