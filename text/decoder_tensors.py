"""Which tensors a checkpoint of a decoder must hold, and of what shapes."""

from __future__ import annotations

from collections.abc import Iterable

from text.decoder_config import DecoderConfig
from text.families.family import Family
from text.families.registry import family_named

Shape = tuple[int, ...]


def decoder_tensors(config: DecoderConfig) -> dict[str, Shape]:
    """Name -> shape of everything the model needs."""
    family = family_named(config.architecture)
    tensors: dict[str, Shape] = {
        f"{family.embedding}.weight": (config.vocab_size, config.hidden_size)
    }
    tensors |= _norm(family, family.final_norm, config.hidden_size)
    if not config.tie_word_embeddings:
        tensors[f"{family.head}.weight"] = (config.vocab_size, config.hidden_size)
    if config.head_bias:
        tensors[f"{family.head}.bias"] = (config.vocab_size,)
    layer = _layer_tensors(family, config)
    for i in range(config.num_layers):
        prefix = family.layer_prefix(i)
        tensors |= {prefix + name: shape for name, shape in layer.items()}
    return tensors


def _layer_tensors(family: Family, config: DecoderConfig) -> dict[str, Shape]:
    names, hidden, inner = family.layer, config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    tensors: dict[str, Shape] = {}
    for norm in names.norms:
        tensors |= _norm(family, norm, hidden)
    if config.qk_norm:
        for norm in filter(None, (names.q_norm, names.k_norm)):
            tensors |= _norm(family, norm, config.head_dim)
    attention = ((names.q, q_size), (names.k, kv_size), (names.v, kv_size))
    tensors |= _linears(attention, hidden, has_bias=config.attention_bias)
    tensors |= _linears(((names.output, hidden),), q_size, has_bias=config.attention_output_bias)
    gate = () if names.gate is None else ((names.gate, inner),)
    tensors |= _linears((*gate, (names.up, inner)), hidden, has_bias=config.mlp_bias)
    tensors |= _linears(((names.down, hidden),), inner, has_bias=config.mlp_bias)
    return tensors


def _norm(family: Family, name: str, size: int) -> dict[str, Shape]:
    kinds = ("weight", "bias") if family.layer_norm else ("weight",)
    return {f"{name}.{kind}": (size,) for kind in kinds}


def _linears(
    outputs: Iterable[tuple[str, int]], num_columns: int, *, has_bias: bool
) -> dict[str, Shape]:
    """Outputs of one name are rows of one tensor."""
    rows: dict[str, int] = {}
    for name, size in outputs:
        rows[name] = rows.get(name, 0) + size
    tensors: dict[str, Shape] = {f"{name}.weight": (n, num_columns) for name, n in rows.items()}
    return tensors | ({f"{name}.bias": (n,) for name, n in rows.items()} if has_bias else {})
