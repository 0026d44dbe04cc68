"""Random models of every family, shape and RoPE scaling, against transformers in float32.

Prompt and continuation are longer than the windows, and reach beyond RoPE's original lengths.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes_cpu_kernels import cpu_kernels
from fakes_generation import Generation
from fakes_tiny_model import TinyModel, make, oracle_continuation
from tandem_kernels import Kernels
from tandem_kernels.reference import ReferenceKernels

from model.causal_lm import CausalLM
from model.loader import load_model
from model.tensor_parallel import TensorParallel
from text.model_card import ModelCard

PROMPT = [5, 17, 99, 3, 3, 42, 120, 7, 64, 11, 8, 130, 0, 77, 21, 34, 90, 55, 6]
NUM_TOKENS = 40


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def load(
    card: ModelCard, dtype: torch.dtype = torch.float32, kernels: Kernels | None = None
) -> CausalLM:
    device, tp = torch.device("cpu"), TensorParallel.single()
    return load_model(card, dtype=dtype, device=device, tp=tp, kernels=kernels)


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5e3, **parameters}}


LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}
PHI3 = {"pad_token_id": 0, "original_max_position_embeddings": 16}
GEMMA = {"pad_token_id": 0, "head_dim": 12}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped heads": ("Llama", {}),
    "one kv head": ("Llama", {"num_key_value_heads": 1}),
    "a kv head per head": ("Llama", {"num_key_value_heads": 6}),
    "tied head": ("Llama", {"tie_word_embeddings": True}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "wide heads": ("Llama", {"head_dim": 32}),
    "gelu": ("Llama", {"hidden_act": "gelu"}),
    "mistral, window": ("Mistral", {"sliding_window": 7}),
    "mistral, no window": ("Mistral", {"sliding_window": None}),
    "linear": ("Llama", rope("linear", factor=4.0)),
    "dynamic": ("Llama", rope("dynamic", factor=4.0) | {"max_position_embeddings": 16}),
    "yarn": ("Llama", rope("yarn", factor=8.0, original_max_position_embeddings=32)),
    "llama3": ("Llama", rope("llama3", factor=8.0, **LLAMA3)),
    "qwen2": ("Qwen2", {}),
    "qwen2, windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen3, biases": ("Qwen3", {"attention_bias": True}),
    "gemma": ("Gemma", GEMMA),
    "gemma, wide heads": ("Gemma", {"pad_token_id": 0, "num_key_value_heads": 1}),
    "gemma2": (
        "Gemma2",
        GEMMA
        | {
            "sliding_window": 7,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma2, no caps": (
        "Gemma2",
        GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3": (
        "Gemma3",
        GEMMA
        | {
            "num_hidden_layers": 4,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]
            + ["sliding_attention"],
            "rope_parameters": GEMMA3_ROPE,
        },
    ),
    "gemma3, one kind": ("Gemma3", GEMMA | {"sliding_window": 9, "attention_bias": True}),
    "phi3": ("Phi3", PHI3),
    "phi3, window": ("Phi3", PHI3 | {"sliding_window": 7}),
    "phi3, long": ("Phi3", PHI3 | rope("longrope", **LONGROPE)),
    "phi3, short": (
        "Phi3",
        PHI3
        | rope("longrope", **LONGROPE)
        | {"original_max_position_embeddings": 64, "max_position_embeddings": 64},
    ),
    "phi3, part of a head": (
        "Phi3",
        PHI3 | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    ),
    "phi": ("Phi", {}),
    "phi, all of a head": (
        "Phi",
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}},
    ),
    "phi, normed heads": ("Phi", {"qk_layernorm": True, "num_key_value_heads": 6}),
}


def backends(dtype: torch.dtype) -> dict[str, Kernels]:
    return {"reference": ReferenceKernels(), "cpu": cpu_kernels(dtype)}


def built(shape: str, directory: Path, **settings: Any) -> TinyModel:
    family, own = SHAPES[shape]
    return make(family, directory, **own, **settings)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_continuation_equal_transformers(shape: str, tmp_path: Path) -> None:
    tiny = built(shape, tmp_path)
    # NTK-aware frequencies depend on the length: within the original one both sides agree on it
    prompt = PROMPT[:16] if shape == "dynamic" else PROMPT
    tokens, expected = oracle_continuation(tiny.oracle, prompt, NUM_TOKENS)
    for backend, kernels in backends(torch.float32).items():
        generation = Generation(load(tiny.card, kernels=kernels), tiny.card)
        logits = generation.step([("a", prompt)])
        for token in tokens:
            logits += generation.step([("a", [token])])
        difference = (torch.cat(logits) - expected).abs().max()
        assert difference < 1e-4, backend


@pytest.mark.parametrize("shape", ["grouped heads", "mistral, window", "dynamic", "gemma3", "phi"])
def test_chunks_and_batches_change_nothing(shape: str, tmp_path: Path) -> None:
    tiny = built(shape, tmp_path)
    generation = Generation(load(tiny.card), tiny.card)
    [whole] = generation.step([("whole", PROMPT)])
    other = list(range(40))
    # Decode rows first, chunks of three sequences in the same batch
    first = generation.step([("b", PROMPT[:1]), ("c", other[:30]), ("a", PROMPT[:9])])
    second = generation.step([("c", other[30:31]), ("b", PROMPT[1:18]), ("a", PROMPT[9:])])
    third = generation.step([("b", PROMPT[18:]), ("c", other[31:32])])
    assert torch.equal(torch.cat((first[2], second[2])), whole)
    assert torch.equal(torch.cat((first[0], second[1], third[0])), whole)


@pytest.mark.parametrize(
    ("shape", "window"),
    [("grouped heads", None), ("gemma2", None), ("mistral, window", 7), ("phi3, window", 7)],
)
def test_blocks_are_needed_as_far_back_as_any_layer_sees(
    shape: str, window: int | None, tmp_path: Path
) -> None:
    card = built(shape, tmp_path).card
    assert load(card).window == window == card.kv_spec(16, "float32").window


FAMILIES = ["grouped heads", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3, long", "phi"]


@pytest.mark.parametrize("shape", FAMILIES)
def test_bfloat16_stays_near_float32(shape: str, tmp_path: Path) -> None:
    tiny = built(shape, tmp_path, dtype=torch.bfloat16)
    exact = tiny.logits(PROMPT)
    for kernels in backends(torch.bfloat16).values():
        model = load(tiny.card, torch.bfloat16, kernels)
        [logits] = Generation(model, tiny.card).step([("a", PROMPT)])
        assert logits.dtype == torch.float32
        assert (logits - exact).abs().max() < 0.1 * exact.abs().max()
