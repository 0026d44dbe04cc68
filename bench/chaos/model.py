"""A small random Llama whose tokens are bytes: real in every part, made and computed in a moment.

Weights are large enough that attention is sharp and logits differ clearly: a wrong block of KV is a
wrong token, and no two prompts go on alike.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

_SPECIAL = ("<pad>", "<s>", "</s>")
_HIDDEN, _KV_DIM, _MLP, _LAYERS = 64, 32, 128, 3
_VOCAB_SIZE = len(_SPECIAL) + 256
FIRST_TOKEN_ID = len(_SPECIAL)
"""Ids from here up to the vocabulary's end are bytes."""
LAST_TOKEN_ID = _VOCAB_SIZE - 1
_CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": _VOCAB_SIZE,
    "hidden_size": _HIDDEN,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": _MLP,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


def write_tiny_model(directory: Path, *, seed: int = 1) -> Path:
    """A Hugging Face directory that any of our processes can serve; equal seeds, equal weights."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_CONFIG))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": _TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    _tokenizer().save(str(directory / "tokenizer.json"))
    save_file(_weights(np.random.default_rng(seed)), directory / "model.safetensors")
    return directory


def _tokenizer() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*_SPECIAL, *alphabet])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer


def _weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int, scale: float) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    ones = np.ones(_HIDDEN, np.float32)
    weights = {
        "model.embed_tokens.weight": matrix(_VOCAB_SIZE, _HIDDEN, 1.0),
        "model.norm.weight": ones,
        "lm_head.weight": matrix(_VOCAB_SIZE, _HIDDEN, 0.5),
    }
    for number in range(_LAYERS):
        layer = {
            "self_attn.q_proj": matrix(_HIDDEN, _HIDDEN, 0.4),
            "self_attn.k_proj": matrix(_KV_DIM, _HIDDEN, 0.4),
            "self_attn.v_proj": matrix(_KV_DIM, _HIDDEN, 0.15),
            "self_attn.o_proj": matrix(_HIDDEN, _HIDDEN, 0.3),
            "mlp.gate_proj": matrix(_MLP, _HIDDEN, 0.15),
            "mlp.up_proj": matrix(_MLP, _HIDDEN, 0.15),
            "mlp.down_proj": matrix(_HIDDEN, _MLP, 0.15),
            "input_layernorm": ones,
            "post_attention_layernorm": ones,
        }
        weights |= {f"model.layers.{number}.{name}.weight": each for name, each in layer.items()}
    return weights
