"""The model card of a GGUF file: the architectures that some family names as its own."""

from __future__ import annotations

from collections import Counter

from core.errors import ConfigError
from text.card import Dtype, ModelCard
from text.decoder_config import DecoderConfig
from text.families.family import Family, GGUFFormat
from text.families.registry import family_of_gguf
from text.fields import Fields
from text.gguf_metadata import GGUFMetadata, float_vector, read_gguf
from text.model_source import ModelSource
from text.rope_config import RopeConfig, RopeScaling
from text.weights_digest import WeightFile, weights_digest

_DTYPES: dict[str, Dtype] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_SCALINGS: dict[str, RopeScaling] = {
    "none": "none",
    "linear": "linear",
    "yarn": "yarn",
}
_ENDS = (
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
)


def load_gguf_card(source: ModelSource) -> ModelCard:
    """Reads the file's head. Raises ConfigError naming the key that is wrong or missing."""
    metadata = read_gguf(source.path)
    fields = Fields(str(source.path), metadata.values)
    family, gguf = family_of_gguf(fields.text("general.architecture"), fields.where)
    _check_supported(fields, gguf.architecture)
    decoder = gguf.adjust(_decoder(source.name, family, gguf, fields, metadata), fields, metadata)
    weight_type = _weight_type(metadata)
    bos_id = fields.integer("tokenizer.ggml.bos_token_id", -1)
    eos_ids = tuple(dict.fromkeys(i for key in _ENDS for i in fields.integers(key)))
    return ModelCard(
        **decoder.settings(),
        source=source,
        dtype=_DTYPES.get(weight_type, "bfloat16"),
        quantization="none" if weight_type in _DTYPES else weight_type,
        bos_token_id=None if bos_id < 0 else bos_id,
        eos_token_ids=eos_ids,
        bos_token=_token_text(fields, bos_id),
        eos_token=_token_text(fields, eos_ids[0] if eos_ids else -1),
        chat_template=fields.text("tokenizer.chat_template", "") or None,
        weights_digest=_digest(metadata),
    )


def _decoder(
    name: str, family: Family, gguf: GGUFFormat, fields: Fields, metadata: GGUFMetadata
) -> DecoderConfig:
    """What all architectures say in the same words; the family adjusts the rest."""
    key, tensors = gguf.architecture, metadata.tensors
    num_layers = fields.integer(f"{key}.block_count")
    num_heads = fields.integer(f"{key}.attention.head_count")
    hidden_size = fields.integer(f"{key}.embedding_length")
    head_dim = _head_dim(fields, key, hidden_size // num_heads if num_heads > 0 else 0)
    return DecoderConfig(
        name=name,
        architecture=family.name,
        vocab_size=_shape(metadata, "token_embd.weight")[0],
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer(f"{key}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rotary_dim=_rotary_dim(fields, gguf, head_dim),
        intermediate_size=fields.integer(f"{key}.feed_forward_length"),
        activation="silu",
        norm_eps=fields.number(f"{key}.attention.layer_norm_rms_epsilon"),
        rope=_rope(fields, key, metadata),
        windows=(None,) * num_layers,
        max_model_len=fields.integer(f"{key}.context_length"),
        tie_word_embeddings="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        attention_output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        qk_norm=family.layer.q_norm is not None,
        attention_scale=max(head_dim, 1) ** -0.5,
    )


def _check_supported(fields: Fields, architecture: str) -> None:
    if fields.integer(f"{architecture}.expert_count", 0):
        raise ConfigError(f"{fields.where}: mixtures of experts are not supported")
    if fields.integer("split.count", 1) > 1:
        raise ConfigError(f"{fields.where}: GGUF files split into parts are not supported")


def _head_dim(fields: Fields, key: str, default: int) -> int:
    head_dim = fields.integer(f"{key}.attention.key_length", default)
    value_dim = fields.integer(f"{key}.attention.value_length", default)
    if head_dim != value_dim:
        raise ConfigError(
            f"{fields.where}: {key}.attention.key_length {head_dim} and value_length {value_dim} "
            "differ"
        )
    return head_dim


def _rotary_dim(fields: Fields, gguf: GGUFFormat, head_dim: int) -> int:
    key = f"{gguf.architecture}.rope.dimension_count"
    rotated = fields.integer(key, head_dim)
    if rotated != head_dim and not gguf.partial_rotary:
        raise ConfigError(f"{fields.where}: {key} {rotated} differs from the head size {head_dim}")
    return rotated


def _rope(fields: Fields, key: str, metadata: GGUFMetadata) -> RopeConfig:
    name = fields.text(f"{key}.rope.scaling.type", "none")
    if name not in _SCALINGS:
        raise ConfigError(
            f"{fields.where}: {key}.rope.scaling.type {name!r} is not supported; supported: "
            f"{', '.join(_SCALINGS)}"
        )
    factor = fields.number(f"{key}.rope.scaling.factor", 1.0)
    length = fields.integer(f"{key}.context_length")
    return RopeConfig(
        theta=fields.number(f"{key}.rope.freq_base", 10000.0),
        scaling=_SCALINGS[name],
        factor=factor,
        original_max_position=fields.integer(
            f"{key}.rope.scaling.original_context_length", int(length / factor)
        ),
        attention_factor=fields.optional_number(f"{key}.rope.scaling.attn_factor"),
        # Llama 3.1's scaling, which GGUF states as divisors: [head_dim / 2]
        frequency_factors=float_vector(metadata, "rope_freqs.weight"),
    )


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
