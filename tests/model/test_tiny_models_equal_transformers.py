"""Random models of every shape and RoPE scaling, against transformers in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakes_tiny_model
import pytest
import torch
from fakes_generation import Generation
from fakes_tiny_model import TinyModel

from model.causal_lm import CausalLM
from model.loader import load_model
from model.tensor_parallel import TensorParallel
from text.model_card import ModelCard

Make = Callable[..., TinyModel]
LLAMA, MISTRAL = fakes_tiny_model.llama, fakes_tiny_model.mistral
PROMPT = [5, 17, 99, 3, 3, 42, 120, 7, 64, 11, 8, 130, 0, 77, 21, 34, 90, 55, 6]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def load(card: ModelCard, dtype: torch.dtype = torch.float32) -> CausalLM:
    return load_model(card, dtype=dtype, device=torch.device("cpu"), tp=TensorParallel.single())


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5e3, **parameters}}


LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHAPES: dict[str, tuple[Make, dict[str, Any]]] = {
    "grouped heads": (LLAMA, {}),
    "one kv head": (LLAMA, {"num_key_value_heads": 1}),
    "a kv head per head": (LLAMA, {"num_key_value_heads": 6}),
    "tied head": (LLAMA, {"tie_word_embeddings": True}),
    "biases": (LLAMA, {"attention_bias": True, "mlp_bias": True}),
    "wide heads": (LLAMA, {"head_dim": 32}),
    "mistral, window": (MISTRAL, {"sliding_window": 7}),
    "mistral, no window": (MISTRAL, {"sliding_window": None}),
    "linear": (LLAMA, rope("linear", factor=4.0)),
    "dynamic": (LLAMA, rope("dynamic", factor=4.0) | {"max_position_embeddings": 16}),
    "yarn": (LLAMA, rope("yarn", factor=8.0, original_max_position_embeddings=32)),
    "llama3": (LLAMA, rope("llama3", factor=8.0, **LLAMA3)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_continuation_equal_transformers(shape: str, tmp_path: Path) -> None:
    make, settings = SHAPES[shape]
    tiny = make(tmp_path, **settings)
    # NTK-aware frequencies depend on the length: within the original one both sides agree on it
    prompt = PROMPT[:16] if shape == "dynamic" else PROMPT
    generation = Generation(load(tiny.card), tiny.card)
    [logits] = generation.step([("whole", prompt)])
    torch.testing.assert_close(logits, tiny.logits(prompt), atol=1e-4, rtol=0)
    assert generation.greedy("greedy", prompt, 40) == tiny.greedy(prompt, 40)


@pytest.mark.parametrize("shape", ["grouped heads", "mistral, window", "dynamic"])
def test_chunks_and_batches_change_nothing(shape: str, tmp_path: Path) -> None:
    make, settings = SHAPES[shape]
    tiny = make(tmp_path, **settings)
    generation = Generation(load(tiny.card), tiny.card)
    [whole] = generation.step([("whole", PROMPT)])
    other = list(range(40))
    # Decode rows first, chunks of three sequences in the same batch
    first = generation.step([("b", PROMPT[:1]), ("c", other[:30]), ("a", PROMPT[:9])])
    second = generation.step([("c", other[30:31]), ("b", PROMPT[1:18]), ("a", PROMPT[9:])])
    third = generation.step([("b", PROMPT[18:]), ("c", other[31:32])])
    torch.testing.assert_close(torch.cat((first[2], second[2])), whole, atol=1e-4, rtol=0)
    pieces = torch.cat((first[0], second[1], third[0]))
    torch.testing.assert_close(pieces, whole, atol=1e-4, rtol=0)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    tiny = LLAMA(tmp_path, dtype=torch.bfloat16)
    [logits] = Generation(load(tiny.card, torch.bfloat16), tiny.card).step([("a", PROMPT)])
    exact = tiny.logits(PROMPT)
    assert logits.dtype == torch.float32
    assert (logits - exact).abs().max() < 0.05 * exact.abs().max()
