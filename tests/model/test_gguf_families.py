"""GGUF files of every architecture, written by the gguf library under its own names of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fakes_tiny_model
import gguf
import numpy as np
import pytest
import torch
from fakes_generation import Generation
from fakes_tiny_model import TinyModel
from gguf import MODEL_ARCH, GGUFWriter

from core.errors import ConfigError
from model.loader import load_model
from model.tensor_parallel import TensorParallel
from text.model_card import ModelCard, load_card
from text.model_source import ModelSource

PROMPT = [5, 17, 99, 3, 3, 42, 120, 7, 64, 11, 8, 130, 0, 77, 21, 34, 90, 55, 6]
SHORT, LONG = [1.0, 1.1, 1.2, 1.3], [2.0, 3.0, 4.0, 5.0]


def nothing_more(writer: GGUFWriter) -> None:
    pass


@dataclass(frozen=True)
class Stored:
    """A family's model, and what llama.cpp's converter writes of it beside what all have."""

    arch: MODEL_ARCH
    settings: dict[str, Any] = field(default_factory=dict)
    metadata: Callable[[GGUFWriter], None] = nothing_more


def mistral_metadata(writer: GGUFWriter) -> None:
    writer.add_sliding_window(7)


def gemma2_metadata(writer: GGUFWriter) -> None:
    writer.add_attn_logit_softcapping(50.0)
    writer.add_final_logit_softcapping(3.0)
    writer.add_sliding_window(7)


def gemma3_metadata(writer: GGUFWriter) -> None:
    writer.add_rope_freq_base(1e5)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)
    writer.add_sliding_window(7)


def phi3_metadata(writer: GGUFWriter) -> None:
    writer.add_rope_dimension_count(8)
    writer.add_rope_scaling_orig_ctx_len(16)
    writer.add_rope_scaling_attn_factors((1 + np.log(256 / 16) / np.log(16)) ** 0.5)
    writer.add_sliding_window(7)
    writer.add_tensor("rope_factors_long.weight", np.array(LONG, np.float32))
    writer.add_tensor("rope_factors_short.weight", np.array(SHORT, np.float32))


GEMMA = {"pad_token_id": 0, "head_dim": 12, "query_pre_attn_scalar": 12}
FILES = {
    "Mistral": Stored(MODEL_ARCH.LLAMA, {"sliding_window": 7}, mistral_metadata),
    "Qwen2": Stored(MODEL_ARCH.QWEN2),
    "Qwen3": Stored(MODEL_ARCH.QWEN3, {"head_dim": 12, "tie_word_embeddings": True}),
    "Gemma": Stored(MODEL_ARCH.GEMMA, GEMMA),
    "Gemma2": Stored(
        MODEL_ARCH.GEMMA2,
        GEMMA | {"sliding_window": 7, "final_logit_softcapping": 3.0},
        gemma2_metadata,
    ),
    "Gemma3": Stored(
        MODEL_ARCH.GEMMA3,
        GEMMA
        | {
            "num_hidden_layers": 7,
            "sliding_window": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        gemma3_metadata,
    ),
    "Phi3": Stored(
        MODEL_ARCH.PHI3,
        {
            "pad_token_id": 0,
            "sliding_window": 7,
            "original_max_position_embeddings": 16,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": SHORT,
                "long_factor": LONG,
            },
        },
        phi3_metadata,
    ),
}


def write_file(path: Path, stored: Stored, tiny: TinyModel) -> None:
    """As llama.cpp's converter does: norms of Gemma as 1 + weight, q and k of Llama interleaved."""
    config, layers = tiny.oracle.config, tiny.card.num_layers
    writer = GGUFWriter(path, gguf.MODEL_ARCH_NAMES[stored.arch])
    writer.add_block_count(layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if "head_dim" in stored.settings:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    stored.metadata(writer)
    names = gguf.get_tensor_name_map(stored.arch, layers)
    for name, tensor in tiny.oracle.state_dict().items():
        if name == "lm_head.weight" and tiny.card.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if stored.arch.name.startswith("GEMMA") and name.endswith("norm.weight"):
            values = values + 1
        if stored.arch == MODEL_ARCH.LLAMA and ("q_proj" in name or "k_proj" in name):
            pairs = values.reshape(-1, 2, tiny.card.head_dim // 2, *values.shape[1:])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None
        writer.add_tensor(gguf_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_card(path: Path) -> ModelCard:
    return load_card(ModelSource("gguf", path, "tiny"))


@pytest.mark.parametrize("family", FILES)
def test_a_gguf_file_equals_transformers(family: str, tmp_path: Path) -> None:
    stored = FILES[family]
    tiny = fakes_tiny_model.make(family, tmp_path / "hf", **stored.settings)
    write_file(tmp_path / "model.gguf", stored, tiny)
    card = gguf_card(tmp_path / "model.gguf")
    assert card.num_parameters == tiny.card.num_parameters
    assert (card.windows, card.rope.scaling) == (tiny.card.windows, tiny.card.rope.scaling)
    device, tp = torch.device("cpu"), TensorParallel.single()
    model = load_model(card, dtype=torch.float32, device=device, tp=tp)
    [logits] = Generation(model, card).step([("a", PROMPT)])
    torch.testing.assert_close(logits, tiny.logits(PROMPT), atol=1e-4, rtol=0)


def test_layers_may_be_flagged_one_by_one(tmp_path: Path) -> None:
    tiny = fakes_tiny_model.make("Gemma2", tmp_path / "hf", **FILES["Gemma2"].settings)

    def metadata(writer: GGUFWriter) -> None:
        gemma2_metadata(writer)
        writer.add_sliding_window_pattern([False, True, True])

    write_file(tmp_path / "model.gguf", Stored(MODEL_ARCH.GEMMA2, GEMMA, metadata), tiny)
    assert gguf_card(tmp_path / "model.gguf").windows == (None, 7, 7)


def test_keys_and_values_of_unequal_size_are_refused(tmp_path: Path) -> None:
    tiny = fakes_tiny_model.make("Qwen3", tmp_path / "hf", head_dim=12)

    def metadata(writer: GGUFWriter) -> None:
        writer.add_key_length(12)
        writer.add_value_length(16)

    write_file(tmp_path / "model.gguf", Stored(MODEL_ARCH.QWEN3, {}, metadata), tiny)
    with pytest.raises(ConfigError, match="key_length 12 and value_length 16"):
        gguf_card(tmp_path / "model.gguf")
