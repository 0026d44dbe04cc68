"""Hugging Face directories: shards, parts of tensors, and errors that name what is wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import fakes_tiny_model
import pytest
import torch
from safetensors.torch import load_file, save_file

from core.errors import ConfigError
from model.loader import load_model
from model.safetensors_checkpoint import SafetensorsCheckpoint
from model.tensor_parallel import TensorParallel
from text.model_card import ModelCard

UP = "model.layers.1.mlp.up_proj.weight"


def load(card: ModelCard) -> list[tuple[str, int, int | None]]:
    """Loads the model; what the progress said."""
    reports: list[tuple[str, int, int | None]] = []
    load_model(
        card,
        dtype=torch.float32,
        device=torch.device("cpu"),
        tp=TensorParallel.single(),
        progress=lambda what, done, total: reports.append((what, done, total)),
    )
    return reports


def rewrite(card: ModelCard, changes: dict[str, torch.Tensor | None]) -> None:
    """Replaces, adds or (None) removes tensors of a checkpoint of one file."""
    file = card.source.path / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)


def test_a_sharded_checkpoint_holds_every_tensor(tmp_path: Path) -> None:
    tiny = fakes_tiny_model.llama(tmp_path, shard="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with SafetensorsCheckpoint(tmp_path) as checkpoint:
        weights = tiny.oracle.state_dict()
        assert set(checkpoint.shapes) == set(weights)
        for name, weight in weights.items():
            assert checkpoint.shapes[name] == tuple(weight.shape)
            assert torch.equal(checkpoint.read(name), weight)


def test_parts_are_the_rows_and_columns_asked_for(tmp_path: Path) -> None:
    weight = fakes_tiny_model.llama(tmp_path).oracle.state_dict()[UP]
    with SafetensorsCheckpoint(tmp_path) as checkpoint:
        assert torch.equal(checkpoint.read(UP, rows=range(3, 20)), weight[3:20])
        assert torch.equal(checkpoint.read(UP, columns=range(7, 9)), weight[:, 7:9])


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    reports = load(fakes_tiny_model.llama(tmp_path).card)
    done = [bytes_ for _, bytes_, _ in reports]
    assert {what for what, _, _ in reports} == {"weights"}
    assert done == sorted(done)
    assert reports[-1][1] == reports[-1][2]


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path).card
    rewrite(card, {UP: None})
    with pytest.raises(ConfigError, match=rf"tiny .* lacks {UP}"):
        load(card)


def test_unexpected_tensors_are_named_and_counted(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path).card
    rewrite(card, {f"extra.{i}": torch.zeros(1) for i in range(8)})
    with pytest.raises(ConfigError, match=r"unexpected extra\.0, .* and 3 more"):
        load(card)


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path).card
    rewrite(card, {UP: torch.zeros(80, 47)})
    with pytest.raises(ConfigError, match=rf"{UP} is \[80, 47\] instead of \[80, 48\]"):
        load(card)


def test_a_tied_head_stored_once_more_is_accepted(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path, tie_word_embeddings=True).card
    rewrite(card, {"lm_head.weight": torch.zeros(131, 48)})
    assert load(card)


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path, tie_word_embeddings=True).card
    with pytest.raises(ConfigError, match=r"lacks lm_head\.weight"):
        load(dataclasses.replace(card, tie_word_embeddings=False))


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path).card
    rewrite(card, {UP: torch.zeros(80, 48, dtype=torch.int8)})
    with pytest.raises(ConfigError, match=rf"{UP} has type I8"):
        load(card)
