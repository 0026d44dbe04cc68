"""Families of decoders: what config.json leaves out, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes_model_files import REMOVED, write_huggingface_directory
from transformers import AutoConfig

from core.errors import ConfigError
from core.kv_spec import KVGroup
from text.decoder_tensors import decoder_tensors
from text.families.registry import FAMILIES
from text.model_card import ModelCard, ModelSource, load_card

CLASSES = [name for family in FAMILIES for name in family.classes]


def card_of(directory: Path, family: str, **changes: object) -> ModelCard:
    config = {"architectures": [f"{family}ForCausalLM"], "hidden_act": REMOVED}
    write_huggingface_directory(directory, config | changes)
    return load_card(ModelSource("huggingface", directory, "tiny"))


@pytest.mark.parametrize("name", CLASSES)
def test_absent_keys_mean_what_transformers_takes_them_for(tmp_path: Path, name: str) -> None:
    family = name.removesuffix("ForCausalLM")
    kind = {"Gemma3": "gemma3_text"}.get(family, family.lower())
    card = card_of(tmp_path, family, model_type=kind, rms_norm_eps=REMOVED)
    config = AutoConfig.from_pretrained(tmp_path)
    eps = config.layer_norm_eps if family == "Phi" else config.rms_norm_eps
    assert card.norm_eps == eps
    assert card.head_dim == (getattr(config, "head_dim", None) or 8)
    assert card.tie_word_embeddings == config.tie_word_embeddings
    softcaps = ("final_logit_softcapping", "attn_logit_softcapping")
    expected = [getattr(config, key, None) or 0.0 for key in softcaps]
    assert [card.logits_softcap, card.attention_softcap] == expected
    scalar = getattr(config, "query_pre_attn_scalar", card.head_dim)
    assert card.attention_scale == pytest.approx(scalar**-0.5)
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * 2
    windows = (
        [config.sliding_window if t == "sliding_attention" else None for t in types]
        if (hasattr(config, "sliding_window"))
        else [None, None]
    )
    assert list(card.windows) == windows
    parameters = config.rope_parameters.get("full_attention", config.rope_parameters)
    assert card.rope.theta == parameters["rope_theta"]
    if card.local_rope is not None:
        assert card.local_rope.theta == config.rope_parameters["sliding_attention"]["rope_theta"]
    assert card.rotary_dim == card.head_dim * parameters.get("partial_rotary_factor", 1.0)


def test_a_fused_tensor_holds_all_its_parts(tmp_path: Path) -> None:
    tensors = decoder_tensors(card_of(tmp_path, "Phi3"))
    assert tensors["model.layers.1.self_attn.qkv_proj.weight"] == (32 + 16 + 16, 32)
    assert tensors["model.layers.1.mlp.gate_up_proj.weight"] == (2 * 48, 32)


def test_groups_of_kv_are_runs_of_layers_with_one_window(tmp_path: Path) -> None:
    card = card_of(tmp_path, "Gemma3", num_hidden_layers=7, sliding_window=24)
    spec = card.kv_spec(16, "float32")
    assert spec.groups == (KVGroup(5, 2, 256, 24), KVGroup(1, 2, 256), KVGroup(1, 2, 256, 24))
    assert spec.window is None


def test_layers_may_be_typed_one_by_one(tmp_path: Path) -> None:
    types = ["full_attention", "sliding_attention"]
    for family in ("Gemma2", "Gemma3"):
        card = card_of(tmp_path / family, family, layer_types=types, sliding_window=9)
        assert card.windows == (None, 9)
    own = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}
    assert card_of(tmp_path / "Qwen2", "Qwen2", **own).windows == (9, 9)


def test_a_null_softcap_is_none(tmp_path: Path) -> None:
    null: dict[str, object] = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    card = card_of(tmp_path, "Gemma2", **null)
    assert (card.attention_softcap, card.logits_softcap) == (0.0, 0.0)


def test_gemma3_lengths_count_the_scaling_in(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    card = card_of(tmp_path, "Gemma3", rope_scaling=scaling, rope_local_base_freq=5e3)
    assert card.max_model_len == 128
    assert (card.rope.scaling, card.rope.factor, card.rope.theta) == ("linear", 8.0, 1e6)
    assert card.local_rope is not None
    assert (card.local_rope.scaling, card.local_rope.theta) == ("none", 5e3)
    assert "local" in card.rope_description


def test_phi3s_first_checkpoints_call_longrope_yarn_or_su(tmp_path: Path) -> None:
    for kind in ("yarn", "su"):
        scaling = {"type": kind, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        card = card_of(
            tmp_path / kind, "Phi3", rope_scaling=scaling, original_max_position_embeddings=64
        )
        assert (card.rope.scaling, card.rope.factor) == ("longrope", 2.0)


def test_the_compat_key_tells_which_factors_of_longrope_are_served(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    scaling = {"type": "longrope", "factor": 2.0, **factors}
    original = {"original_max_position_embeddings": 64}
    long = card_of(tmp_path / "long", "Phi3", rope_scaling=scaling, **original)
    short = card_of(
        tmp_path / "short", "Phi3", rope_scaling=scaling, max_position_embeddings=64, **original
    )
    assert long.rope == short.rope
    assert long.rope_description != short.rope_description


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("Gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("Gemma2", {"hidden_activation": "silu"}, "hidden_activation silu"),
        ("Gemma2", {"hidden_activation": "relu"}, "hidden_activation 'relu'"),
        ("Gemma2", {"layer_types": ["full_attention"]}, "1 layers have a type"),
        ("Gemma2", {"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
        ("Gemma2", {"sliding_window": None}, "sliding_window is null"),
        ("Gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ("Gemma2", {"attn_logit_softcapping": -1.0}, "attention_softcap"),
        ("Gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("Gemma3", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("Qwen2", {"num_key_value_heads": REMOVED}, "num_key_value_heads"),
        ("Qwen2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("Phi", {"partial_rotary_factor": 0.4}, "partial_rotary_factor"),
        ("Phi", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ("Phi", {"hidden_act": "relu"}, "hidden_act 'relu'"),
        ("Phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "long_factor"),
        (
            "Phi3",
            {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0]}},
            "short_factor has 1 values",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, family: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        card_of(tmp_path, family, **changes)
