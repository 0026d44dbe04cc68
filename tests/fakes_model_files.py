"""Small models on disk: Hugging Face directories and GGUF files with few, real weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

LLAMA_CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_huggingface_directory(
    directory: Path, changes: Mapping[str, object] | None = None, *, seed: int = 0
) -> Path:
    """A directory with config.json and one weight file."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**LLAMA_CONFIG, **(changes or {})}
    kept = {key: value for key, value in config.items() if value is not REMOVED}
    (directory / "config.json").write_text(json.dumps(kept))
    rng = np.random.default_rng(seed)
    weights = {
        "model.embed_tokens.weight": rng.standard_normal((64, 32)).astype(np.float32),
        "model.norm.weight": rng.standard_normal(32).astype(np.float32),
    }
    save_file(weights, directory / "model.safetensors")
    return directory


REMOVED = object()
"""A change that takes the key away, where None writes an explicit null."""


def gguf_writer(path: Path) -> gguf.GGUFWriter:
    """A writer that already holds a small Llama's metadata and the tensors a card looks at."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((64, 32), np.float16))
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    return writer


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes everything out; the file is complete afterwards."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
