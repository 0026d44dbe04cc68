"""The model card of a GGUF file of llama.cpp's `llama` architecture (Llama and Mistral)."""

from __future__ import annotations

import struct
from collections import Counter

from core.errors import ConfigError
from text.card import Dtype, ModelCard
from text.fields import Fields
from text.gguf_metadata import GGUFMetadata, read_gguf
from text.model_source import ModelSource
from text.rope_config import RopeConfig, RopeScaling
from text.weights_digest import WeightFile, weights_digest

_DTYPES: dict[str, Dtype] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_SCALINGS: dict[str, RopeScaling] = {"none": "none", "linear": "linear", "yarn": "yarn"}
_ENDS = (
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
)


def load_gguf_card(source: ModelSource) -> ModelCard:
    """Reads the file's head. Raises ConfigError naming the key that is wrong or missing."""
    metadata = read_gguf(source.path)
    fields = Fields(str(source.path), metadata.values)
    _check_supported(fields)
    hidden_size = fields.integer("llama.embedding_length")
    num_heads = fields.integer("llama.attention.head_count")
    rope = _rope(fields, metadata)
    weight_type = _weight_type(metadata)
    bos_id = fields.integer("tokenizer.ggml.bos_token_id", -1)
    eos_ids = tuple(dict.fromkeys(i for key in _ENDS for i in fields.integers(key)))
    return ModelCard(
        name=source.name,
        source=source,
        architecture="llama",
        vocab_size=_shape(metadata, "token_embd.weight")[0],
        hidden_size=hidden_size,
        num_layers=fields.integer("llama.block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("llama.attention.head_count_kv", num_heads),
        head_dim=_head_dim(fields, hidden_size, num_heads),
        intermediate_size=fields.integer("llama.feed_forward_length"),
        rms_norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon"),
        rope=rope,
        max_model_len=fields.integer("llama.context_length"),
        tie_word_embeddings="output.weight" not in metadata.tensors,
        attention_bias="blk.0.attn_q.bias" in metadata.tensors,
        attention_output_bias="blk.0.attn_output.bias" in metadata.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in metadata.tensors,
        sliding_window=fields.integer("llama.attention.sliding_window", 0) or None,
        dtype=_DTYPES.get(weight_type, "bfloat16"),
        quantization="none" if weight_type in _DTYPES else weight_type,
        bos_token_id=None if bos_id < 0 else bos_id,
        eos_token_ids=eos_ids,
        bos_token=_token_text(fields, bos_id),
        eos_token=_token_text(fields, eos_ids[0] if eos_ids else -1),
        chat_template=fields.text("tokenizer.chat_template", "") or None,
        weights_digest=_digest(metadata),
    )


def _check_supported(fields: Fields) -> None:
    architecture = fields.text("general.architecture")
    if architecture != "llama":
        raise ConfigError(
            f"{fields.where}: architecture {architecture!r} is not supported; supported: llama"
        )
    if fields.integer("llama.expert_count", 0):
        raise ConfigError(f"{fields.where}: mixtures of experts are not supported")
    if fields.integer("split.count", 1) > 1:
        raise ConfigError(f"{fields.where}: GGUF files split into parts are not supported")


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    rotated = fields.integer("llama.rope.dimension_count", 0)
    default = hidden_size // num_heads if num_heads > 0 else 0
    head_dim = fields.integer("llama.attention.key_length", default)
    if rotated and rotated != head_dim:
        raise ConfigError(
            f"{fields.where}: llama.rope.dimension_count {rotated} differs from the head size "
            f"{head_dim}"
        )
    return head_dim


def _rope(fields: Fields, metadata: GGUFMetadata) -> RopeConfig:
    name = fields.text("llama.rope.scaling.type", "none")
    if name not in _SCALINGS:
        raise ConfigError(
            f"{fields.where}: llama.rope.scaling.type {name!r} is not supported; supported: "
            f"{', '.join(_SCALINGS)}"
        )
    factor = fields.number("llama.rope.scaling.factor", 1.0)
    length = fields.integer("llama.context_length")
    return RopeConfig(
        theta=fields.number("llama.rope.freq_base", 10000.0),
        scaling=_SCALINGS[name],
        factor=factor,
        original_max_position=fields.integer(
            "llama.rope.scaling.original_context_length", int(length / factor)
        ),
        attention_factor=fields.optional_number("llama.rope.scaling.attn_factor"),
        frequency_factors=_frequency_factors(metadata),
    )


def _frequency_factors(metadata: GGUFMetadata) -> tuple[float, ...]:
    """Llama 3.1's scaling, which GGUF states as a tensor of divisors: [head_dim / 2]."""
    tensor = metadata.tensors.get("rope_freqs.weight")
    if tensor is None:
        return ()
    if tensor.ggml_type != "F32":
        raise ConfigError(f"{metadata.path}: rope_freqs.weight is {tensor.ggml_type}, not F32")
    with metadata.path.open("rb") as file:
        file.seek(tensor.offset_bytes)
        data = file.read(tensor.size_bytes)
    return struct.unpack(f"<{tensor.size_bytes // 4}f", data)


def _weight_type(metadata: GGUFMetadata) -> str:
    """The type of most matrices; vectors are F32 in every file."""
    types = Counter(t.ggml_type for t in metadata.tensors.values() if len(t.shape) > 1)
    if not types:
        raise ConfigError(f"{metadata.path} holds no weights")
    return types.most_common(1)[0][0]


def _shape(metadata: GGUFMetadata, name: str) -> tuple[int, ...]:
    if name not in metadata.tensors:
        raise ConfigError(f"{metadata.path} lacks the tensor '{name}'")
    return metadata.tensors[name].shape


def _token_text(fields: Fields, token_id: int) -> str:
    if token_id < 0:
        return ""
    tokens = fields.texts("tokenizer.ggml.tokens")
    if token_id >= len(tokens):
        raise ConfigError(f"{fields.where}: special token {token_id} is not in the vocabulary")
    return tokens[token_id]


def _digest(metadata: GGUFMetadata) -> str:
    # One file is the whole model, so its name says nothing and may differ between machines.
    tensors = tuple((t.name, t.offset_bytes, t.size_bytes) for t in metadata.tensors.values())
    return weights_digest([WeightFile("gguf", metadata.path, metadata.data_start_bytes, tensors)])
