"""A small random Llama on disk whose tokens are bytes: real in every part, computed in a moment."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

EOS = 2
SPECIAL = ("<pad>", "<s>", "</s>")
VOCAB_SIZE = len(SPECIAL) + 256
MAX_MODEL_LEN = 8192
CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": MAX_MODEL_LEN,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": EOS,
}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def write_byte_model(directory: Path, *, seed: int = 1, num_heads: int = 4) -> Path:
    """A Hugging Face directory with config, tokenizer, chat template and weights.

    Two KV heads, whatever the number of query heads.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = CONFIG | {"num_attention_heads": num_heads}
    (directory / "config.json").write_text(json.dumps(config))
    settings = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    _tokenizer().save(str(directory / "tokenizer.json"))
    weights = _weights(np.random.default_rng(seed), head_dim=64 // num_heads)
    save_file(weights, directory / "model.safetensors")
    return directory


def token_id(token: str) -> int:
    """Of a printable ASCII character, or of a special token."""
    return _vocabulary()[token]


def _vocabulary() -> dict[str, int]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return {token: i for i, token in enumerate([*SPECIAL, *alphabet])}


def _tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(_vocabulary(), []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _weights(rng: np.random.Generator, *, head_dim: int) -> dict[str, np.ndarray]:
    """Large enough that attention is sharp and logits differ clearly: wrong KV is a wrong token."""

    def matrix(rows: int, columns: int, scale: float = 0.15) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    ones = np.ones(64, np.float32)
    weights = {
        "model.embed_tokens.weight": matrix(VOCAB_SIZE, 64, 1.0),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(VOCAB_SIZE, 64, 0.5),
    }
    for i in range(2):
        layer = {
            "self_attn.q_proj": matrix(64, 64, 0.4),
            "self_attn.k_proj": matrix(2 * head_dim, 64, 0.4),
            "self_attn.v_proj": matrix(2 * head_dim, 64),
            "self_attn.o_proj": matrix(64, 64, 0.3),
            "mlp.gate_proj": matrix(96, 64),
            "mlp.up_proj": matrix(96, 64),
            "mlp.down_proj": matrix(64, 96),
            "input_layernorm": ones,
            "post_attention_layernorm": ones,
        }
        weights |= {f"model.layers.{i}.{name}.weight": value for name, value in layer.items()}
    return weights
