"""The model in the formats that other servers read: the same weights, shapes and tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes_model_files import finish, gguf_writer
from tokenizers import Tokenizer

from bench.peers.export import check_exportable, export_huggingface
from bench.peers.places import ModelFiles
from core.errors import ConfigError
from model.checkpoint import open_checkpoint
from text.card import ModelCard
from text.gguf_tokenizer import build_gguf_tokenizer
from text.model_card import load_card
from text.model_source import ModelSource

TOKENS = ["<|end|>", "<|start|>", "a", "b", "ab", "1", "2", "\u0120"]


def small_card(path: Path) -> ModelCard:
    writer = gguf_writer(path)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, *(1 for _ in TOKENS[2:])])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    weights = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    writer.add_tensor("blk.0.attn_q.weight", weights)
    finish(writer)
    return load_card(ModelSource("gguf", path, "tiny"))


def test_the_exported_directory_is_the_same_model_in_bfloat16(tmp_path: Path) -> None:
    card = small_card(tmp_path / "tiny.gguf")
    directory = export_huggingface(card, ModelFiles(tmp_path / "out"))
    exported = load_card(ModelSource("huggingface", directory, "tiny"))
    for key in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "rope"):
        assert getattr(exported, key) == getattr(card, key)
    assert (exported.dtype, exported.eos_token_ids) == ("bfloat16", card.eos_token_ids)
    assert exported.tie_word_embeddings and exported.norm_eps == card.norm_eps
    with open_checkpoint(card) as ours, open_checkpoint(exported) as theirs:
        assert set(ours.shapes) == set(theirs.shapes)
        for name in ours.shapes:
            assert torch.equal(theirs.read(name), ours.read(name).to(torch.bfloat16)), name


def test_the_exported_tokenizer_gives_the_same_ids_digits_apart(tmp_path: Path) -> None:
    card = small_card(tmp_path / "tiny.gguf")
    directory = export_huggingface(card, ModelFiles(tmp_path / "out"))
    theirs = Tokenizer.from_file(str(directory / "tokenizer.json"))
    text = "<|start|>ab12 ab<|end|>"
    assert theirs.encode(text).ids == build_gguf_tokenizer(card.source.path).encode(text).ids
    assert theirs.encode("12").tokens == ["1", "2"]


def test_a_model_that_peers_would_read_otherwise_is_refused(tmp_path: Path) -> None:
    card = small_card(tmp_path / "tiny.gguf")
    scaled = replace(card, rope=replace(card.rope, scaling="linear", factor=2.0))
    with pytest.raises(ConfigError, match="RoPE scaling"):
        check_exportable(scaled)
