"""Weights of a GGUF file, under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from tandem_kernels import QuantizedWeight
from torch import Tensor

from model.gguf_dequantize import dequantize
from model.quantization.gguf_blocks import packed_blocks
from model.quantization.whole_numbers import part, rows_taken
from text.families.family import Family
from text.gguf_metadata import GGUFTensor, read_gguf

_LAYER_NAMES = {
    "input_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "output": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attention_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_mlp_norm": "post_ffw_norm",
}
# The model card has it, as part of its RoPE settings
_ROPE_FACTORS = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)


class GGUFCheckpoint:
    """A `Checkpoint` over one mapped file; tensors it cannot name keep their GGUF names."""

    def __init__(self, path: Path, family: Family, head_dim: int) -> None:
        assert family.gguf is not None
        metadata = read_gguf(path)
        self._head_dim = head_dim
        self._norm_plus_one = family.norm_plus_one
        names = family.layer
        self._interleaved = (names.q, names.k) if family.gguf.interleaved_heads else ()
        to_huggingface = _Names(family)
        self._tensors: dict[str, GGUFTensor] = {
            to_huggingface(name): tensor
            for name, tensor in metadata.tensors.items()
            if name not in _ROPE_FACTORS
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
            if self._norm_plus_one and name.endswith("norm.weight"):
                values = values - 1  # llama.cpp stores what a norm multiplies with
        if any(module in name for module in self._interleaved):
            values = unpermute(values, self._head_dim)
        return values if columns is None else values[:, columns.start : columns.stop]

    def read_quantized(
        self, name: str, rows: range | None = None, columns: range | None = None
    ) -> QuantizedWeight | None:
        tensor = self._tensors[name]
        if len(tensor.shape) == 1:
            return None
        weight = packed_blocks(tensor.ggml_type, self._stored(tensor, rows))
        if weight is None:
            return None
        if any(module in name for module in self._interleaved):
            weight = rows_taken(weight, unpermute(torch.arange(len(weight.values)), self._head_dim))
        return part(weight, None, columns)

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


class _Names:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; unknown names stay."""

    def __init__(self, family: Family) -> None:
        self._prefix = family.prefix
        self._model = {
            "token_embd": family.embedding,
            "output_norm": family.final_norm,
            "output": family.head,
        }
        modules = {role: getattr(family.layer, role) for role in _LAYER_NAMES}
        self._layer = {_LAYER_NAMES[role]: name for role, name in modules.items() if name}
        if modules["q"] == modules["k"]:
            self._layer["attn_qkv"] = modules["q"]

    def __call__(self, name: str) -> str:
        match name.split("."):
            case [module, kind] if module in self._model:
                return f"{self._model[module]}.{kind}"
            case ["blk", layer, module, kind] if module in self._layer:
                return f"{self._prefix}.{layer}.{self._layer[module]}.{kind}"
        return name


def unpermute(values: Tensor, head_dim: int) -> Tensor:
    """Rows of whole heads from pairs side by side (GGUF) to pairs half a head apart.

    [heads * head_dim, ...] -> the same shape.
    """
    pairs = values.view(-1, head_dim // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
