"""What `tandem model info` says about a model."""

from __future__ import annotations

from cli.sizes import size_text
from text.card import ModelCard
from text.memory_plan import MemoryPlan


def served_dtype(setting: str) -> str:
    """The precision that `auto` stands for on this machine's CPU; others as they are."""
    if setting != "auto":
        return setting
    import torch
    from tandem_kernels import prefers_bfloat16

    return "bfloat16" if prefers_bfloat16(torch.device("cpu")) else "float32"


def info_text(card: ModelCard, plan: MemoryPlan, *, weights: str, block_size: int) -> str:
    """Parameters, KV size, and what fits. `weights` names the precision that they are served in."""
    heads = f"{card.num_heads} heads, {card.num_kv_heads} KV heads of {card.head_dim}"
    rows = [
        ("model", card.name),
        ("files", str(card.source.path)),
        ("shape", f"{card.num_layers} layers, hidden {card.hidden_size}, {heads}"),
        ("parameters", f"{card.num_parameters:,}"),
        ("weights", f"{size_text(plan.weight_bytes)} in {weights}, stored as {_stored(card)}"),
        ("longest", f"{card.max_model_len:,} tokens"),
        ("KV", f"{plan.kv_bytes_per_token:,} bytes per token in {plan.kv_dtype}"),
        ("", f"{size_text(plan.kv_bytes_per_token * block_size)} per block of {block_size}"),
        ("memory", f"{size_text(plan.memory_bytes)} for weights and KV, activations apart"),
        ("fits", f"{plan.num_blocks:,} blocks = {plan.num_tokens:,} tokens"),
        ("", f"{plan.num_full_sequences:,} sequences of the longest length"),
    ]
    return "\n".join(f"{label:<11} {value}" for label, value in rows)


def _stored(card: ModelCard) -> str:
    return card.dtype if card.quantization == "none" else card.quantization
