"""Weights of a GGUF file of architecture `llama`, under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from model.gguf_dequantize import dequantize
from text.gguf_metadata import GGUFTensor, read_gguf

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The model card has it, as part of its RoPE settings
_ROPE_FACTORS = "rope_freqs.weight"


class GGUFCheckpoint:
    """A `Checkpoint` over one mapped file; tensors it cannot name keep their GGUF names."""

    def __init__(self, path: Path, head_dim: int) -> None:
        metadata = read_gguf(path)
        self._head_dim = head_dim
        self._tensors: dict[str, GGUFTensor] = {
            huggingface_name(name): tensor
            for name, tensor in metadata.tensors.items()
            if name != _ROPE_FACTORS
        }
        # Copy-on-write, because torch wants writable memory; nothing writes to it
        self._data = np.memmap(path, dtype=np.uint8, mode="c")

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> Tensor:
        tensor = self._tensors[name]
        num_columns = tensor.shape[-1]
        values = dequantize(tensor.ggml_type, self._stored(tensor, rows), num_columns)
        if len(tensor.shape) == 1:
            values = values[0] if rows is None else values[0, rows.start : rows.stop]
        if "q_proj" in name or "k_proj" in name:
            values = unpermute(values, self._head_dim)
        return values if columns is None else values[:, columns.start : columns.stop]

    def _stored(self, tensor: GGUFTensor, rows: range | None) -> Tensor:
        """uint8 [rows, bytes of a row]; a vector is one row, whatever part is wanted."""
        data = self._data[tensor.offset_bytes : tensor.offset_bytes + tensor.size_bytes]
        if len(tensor.shape) == 1:
            return torch.from_numpy(data).unsqueeze(0)
        stored = torch.from_numpy(data).view(tensor.shape[0], -1)
        return stored if rows is None else stored[rows.start : rows.stop]

    def __enter__(self) -> GGUFCheckpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self._data


def huggingface_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; unknown names stay."""
    if name in _NAMES:
        return _NAMES[name]
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _LAYER_NAMES:
        return name
    return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"


def unpermute(values: Tensor, head_dim: int) -> Tensor:
    """Rows of whole heads from pairs side by side (GGUF) to pairs half a head apart.

    [heads * head_dim, ...] -> the same shape.
    """
    pairs = values.view(-1, head_dim // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
