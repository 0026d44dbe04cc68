"""RoPE settings read from config.json, against how transformers understands them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes_model_files import write_huggingface_directory
from transformers import LlamaConfig

from text.model_card import ModelSource, RopeConfig, load_card

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 32,
}


def rope_and_length(directory: Path, **changes: object) -> tuple[RopeConfig, int]:
    write_huggingface_directory(directory, changes)
    card = load_card(ModelSource("huggingface", directory, "tiny"))
    return card.rope, card.max_model_len


@pytest.mark.parametrize(
    "scaling",
    [None, {"type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 2.0}, LLAMA3, YARN],
)
def test_old_and_new_spelling_give_the_same(
    tmp_path: Path, scaling: dict[str, object] | None
) -> None:
    old = rope_and_length(tmp_path / "old", rope_theta=5e5, rope_scaling=scaling)
    write_huggingface_directory(tmp_path / "new")
    LlamaConfig.from_pretrained(tmp_path / "old").save_pretrained(tmp_path / "new")
    assert "rope_parameters" in json.loads((tmp_path / "new" / "config.json").read_text())
    card = load_card(ModelSource("huggingface", tmp_path / "new", "tiny"))
    assert (card.rope, card.max_model_len) == old


def test_lengths_follow_from_the_kind_of_scaling(tmp_path: Path) -> None:
    linear = {"type": "linear", "factor": 2.0}
    assert rope_and_length(tmp_path / "a")[1] == 128
    assert rope_and_length(tmp_path / "b", rope_scaling=linear)[1] == 256
    assert rope_and_length(tmp_path / "c", rope_scaling=LLAMA3)[1] == 128
    assert rope_and_length(tmp_path / "d", rope_scaling=YARN)[1] == 128
    own_length = {"rope_type": "yarn", "factor": 4.0}
    assert rope_and_length(tmp_path / "e", rope_scaling=own_length)[1] == 512


def test_longrope_takes_its_factor_from_the_lengths(tmp_path: Path) -> None:
    rope, length = rope_and_length(tmp_path, rope_scaling=LONGROPE)
    assert (rope.scaling, rope.factor, rope.original_max_position) == ("longrope", 4.0, 32)
    assert rope.long_factor == (2.0, 3.0, 4.0, 5.0)
    assert length == 128


def test_descriptions_are_equal_exactly_when_the_angles_are() -> None:
    assert RopeConfig(theta=1e4).description == RopeConfig().description
    assert RopeConfig(theta=1e5).description != RopeConfig().description
    assert RopeConfig(frequency_factors=(1.0,)).description != RopeConfig().description
