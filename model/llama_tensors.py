"""Which tensors a checkpoint of a Llama-family decoder must hold, and of what shapes."""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import ConfigError
from text.card import ModelCard

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
_NUM_NAMED_IN_ERRORS = 5


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def llama_tensors(card: ModelCard) -> dict[str, Shape]:
    """Name -> shape of everything the model needs."""
    tensors: dict[str, Shape] = {
        EMBEDDING: (card.vocab_size, card.hidden_size),
        FINAL_NORM: (card.hidden_size,),
    }
    if not card.tie_word_embeddings:
        tensors[HEAD] = (card.vocab_size, card.hidden_size)
    layer = _layer_tensors(card)
    for i in range(card.num_layers):
        tensors |= {layer_prefix(i) + name: shape for name, shape in layer.items()}
    return tensors


def check_tensors(card: ModelCard, found: Mapping[str, Shape]) -> None:
    """Raises ConfigError that names tensors missing, unexpected, or of another shape."""
    expected = llama_tensors(card)
    wrong = [
        f"{name} is {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    unexpected = [n for n in found if n not in expected and not _harmless(card, n)]
    problems = [
        _named("lacks", [name for name in expected if name not in found]),
        _named("holds unexpected", unexpected),
        _named("disagrees with its configuration:", wrong),
    ]
    if any(problems):
        text = "; ".join(p for p in problems if p)
        raise ConfigError(f"the checkpoint of {card.name} ({card.source.path}) {text}")


def _layer_tensors(card: ModelCard) -> dict[str, Shape]:
    hidden, inner = card.hidden_size, card.intermediate_size
    q_size, kv_size = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
    linears = {
        "self_attn.q_proj": (q_size, hidden, card.attention_bias),
        "self_attn.k_proj": (kv_size, hidden, card.attention_bias),
        "self_attn.v_proj": (kv_size, hidden, card.attention_bias),
        "self_attn.o_proj": (hidden, q_size, card.attention_output_bias),
        "mlp.gate_proj": (inner, hidden, card.mlp_bias),
        "mlp.up_proj": (inner, hidden, card.mlp_bias),
        "mlp.down_proj": (hidden, inner, card.mlp_bias),
    }
    tensors: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, (num_rows, num_columns, has_bias) in linears.items():
        tensors[f"{name}.weight"] = (num_rows, num_columns)
        if has_bias:
            tensors[f"{name}.bias"] = (num_rows,)
    return tensors


def _harmless(card: ModelCard, name: str) -> bool:
    """A tied head stored once more, and tables that old checkpoints carry along."""
    return (name == HEAD and card.tie_word_embeddings) or name.endswith("rotary_emb.inv_freq")


def _named(verb: str, names: list[str]) -> str:
    if not names:
        return ""
    more = len(names) - _NUM_NAMED_IN_ERRORS
    ending = f" and {more} more" if more > 0 else ""
    return f"{verb} {', '.join(names[:_NUM_NAMED_IN_ERRORS])}{ending}"
