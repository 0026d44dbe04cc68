"""The served model in the formats that the peers read: the same weights, rounded to bfloat16.

    GGUF file > dequantised, bfloat16 > safetensors, config.json, tokenizer    vLLM, transformers
    GGUF file > llama-quantize > BF16 > llama-quantize > Q8_0, Q4_1, Q4_0      llama.cpp

transformers itself refuses to save a model that it read from GGUF, and drops the pre-tokenizer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import torch
from safetensors.torch import save_file

from bench.peers.places import GGUF_TYPES, ModelFiles, Places
from core.errors import ConfigError
from model.checkpoint import open_checkpoint
from text.card import ModelCard
from text.gguf_tokenizer import build_gguf_tokenizer


def check_exportable(card: ModelCard) -> None:
    """Raises ConfigError for a model that cannot be written in the peers' formats."""
    if card.source.kind != "gguf" or card.architecture != "llama" or card.rope.scaling != "none":
        raise ConfigError(
            f"{card.name}: peers are measured on a GGUF file of the Llama architecture without "
            "RoPE scaling"
        )


def export_huggingface(card: ModelCard, files: ModelFiles) -> Path:
    """The Hugging Face directory, written first if it isn't there. Raises ConfigError."""
    check_exportable(card)
    if not files.huggingface.is_dir():
        scratch = _emptied(files.huggingface.with_suffix(".partial"))
        _write_weights(card, scratch / "model.safetensors")
        build_gguf_tokenizer(card.source.path).save(str(scratch / "tokenizer.json"))
        for name, values in huggingface_files(card).items():
            (scratch / name).write_text(json.dumps(values, indent=2) + "\n")
        os.replace(scratch, files.huggingface)
    return files.huggingface


def export_gguf(card: ModelCard, files: ModelFiles, places: Places) -> None:
    """Every one of `GGUF_TYPES`, written first where it isn't there. Raises ConfigError."""
    check_exportable(card)
    files.directory.mkdir(parents=True, exist_ok=True)
    source = card.source.path
    for ggml_type in GGUF_TYPES:
        target = files.gguf(ggml_type)
        if not target.is_file():
            scratch = target.with_suffix(".partial")
            tool = places.llama_tool("llama-quantize")
            command = [str(tool), "--allow-requantize", str(source), str(scratch), ggml_type]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ConfigError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
            os.replace(scratch, target)
        # All others are made of the bfloat16 weights, which are the ones everybody gets
        source = files.gguf("BF16")


def huggingface_files(card: ModelCard) -> dict[str, dict[str, object]]:
    """The JSON files beside weights and tokenizer.json, by their names."""
    ends = {"bos_token_id": card.bos_token_id, "eos_token_id": list(card.eos_token_ids)}
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "vocab_size": card.vocab_size,
            "hidden_size": card.hidden_size,
            "intermediate_size": card.intermediate_size,
            "num_hidden_layers": card.num_layers,
            "num_attention_heads": card.num_heads,
            "num_key_value_heads": card.num_kv_heads,
            "head_dim": card.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": card.norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": card.rope.theta},
            "rope_theta": card.rope.theta,
            "max_position_embeddings": card.max_model_len,
            "tie_word_embeddings": card.tie_word_embeddings,
            "attention_bias": card.attention_bias,
            "mlp_bias": card.mlp_bias,
            **ends,
        },
        "generation_config.json": {"pad_token_id": card.eos_token_ids[0], **ends},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": card.bos_token,
            "eos_token": card.eos_token,
            "pad_token": card.eos_token,
            "model_max_length": card.max_model_len,
            "clean_up_tokenization_spaces": False,
            "chat_template": card.chat_template,
        },
    }


def _write_weights(card: ModelCard, path: Path) -> None:
    with open_checkpoint(card) as checkpoint:
        tensors = {
            name: checkpoint.read(name).to(torch.bfloat16).contiguous()
            for name in checkpoint.shapes
        }
    save_file(tensors, path, metadata={"format": "pt"})


def _emptied(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory
