"""Small checkpoints in other people's quantised formats, packed number by number in plain loops."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fakes_tiny_model
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from text.model_card import ModelCard, load_card
from text.model_source import ModelSource

SHAPE = {
    "vocab_size": 67,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


@dataclass(frozen=True)
class QuantizedFiles:
    """A checkpoint, and what its quantised weights stand for by the names of plain weights."""

    card: ModelCard
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Numbers:
    """A layer as whole numbers 0 .. 2^bits - 1, with a scale and zero point for each group."""

    bits: int
    group_size: int
    values: list[list[int]]  # [out][in]
    scales: Tensor  # float16 [out, groups]
    zeros: list[list[int]]  # [out][groups]

    def floats(self, group_of: Callable[[int], int] | None = None) -> Tensor:
        """What the numbers stand for, one at a time. float32 [out, in]."""
        result = torch.empty(len(self.values), len(self.values[0]))
        for o, row in enumerate(self.values):
            for i, value in enumerate(row):
                g = i // self.group_size if group_of is None else group_of(i)
                result[o, i] = float(self.scales[o, g]) * (value - self.zeros[o][g])
        return result


def random_numbers(
    shape: tuple[int, int], *, bits: int, group_size: int, symmetric: bool, seed: int
) -> Numbers:
    generator = torch.Generator().manual_seed(seed)
    num_rows, num_columns = shape
    num_groups = -(-num_columns // group_size)
    values = torch.randint(0, 1 << bits, shape, generator=generator)
    middle = 1 << (bits - 1)
    zeros = torch.randint(1, 1 << bits, (num_rows, num_groups), generator=generator)
    zeros = torch.full_like(zeros, middle) if symmetric else zeros
    scales = (torch.rand((num_rows, num_groups), generator=generator) + 0.5) / (8 * middle)
    return Numbers(bits, group_size, values.tolist(), scales.half(), zeros.tolist())


def word(numbers: list[int], bits: int) -> int:
    """Numbers in an int32, the first in the lowest bits."""
    packed = 0
    for k, number in enumerate(numbers):
        packed |= number << (k * bits)
    return packed - (1 << 32) if packed >= 1 << 31 else packed


def packed_down(columns: list[list[int]], bits: int) -> Tensor:
    """[r][c] -> int32 [r * bits / 32, c]: words run down a column."""
    n = 32 // bits
    num_columns = len(columns[0])
    words = [
        [word([columns[r + k][c] for k in range(n)], bits) for c in range(num_columns)]
        for r in range(0, len(columns), n)
    ]
    return torch.tensor(words, dtype=torch.int32)


def packed_along(rows: list[list[int]], bits: int, order: list[int] | None = None) -> Tensor:
    """[r][c] -> int32 [r, c * bits / 32]: words run along a row; `order` of the columns in one."""
    n = 32 // bits
    order = order or list(range(n))
    words = [
        [word([row[c + order[k]] for k in range(n)], bits) for c in range(0, len(row), n)]
        for row in rows
    ]
    return torch.tensor(words, dtype=torch.int32)


def transposed(rows: list[list[int]]) -> list[list[int]]:
    return [list(column) for column in zip(*rows, strict=True)]


def gptq_parts(numbers: Numbers, shift: int = 1) -> dict[str, Tensor]:
    bits = numbers.bits
    stored_zeros = [[zero - shift for zero in row] for row in transposed(numbers.zeros)]
    num_columns = len(numbers.values[0])
    return {
        "qweight": packed_down(transposed(numbers.values), bits),
        "qzeros": packed_along(stored_zeros, bits),
        "scales": numbers.scales.t().contiguous(),
        "g_idx": torch.tensor([i // numbers.group_size for i in range(num_columns)]).int(),
    }


def awq_parts(numbers: Numbers) -> dict[str, Tensor]:
    return {
        "qweight": packed_along(transposed(numbers.values), 4, AWQ_ORDER),
        "qzeros": packed_along(transposed(numbers.zeros), 4, AWQ_ORDER),
        "scales": numbers.scales.t().contiguous(),
    }


def pack_quantized_parts(numbers: Numbers, *, symmetric: bool) -> dict[str, Tensor]:
    parts = {
        "weight_packed": packed_along(numbers.values, numbers.bits),
        "weight_scale": numbers.scales,
        "weight_shape": torch.tensor([len(numbers.values), len(numbers.values[0])]),
    }
    if not symmetric:
        parts["weight_zero_point"] = packed_down(numbers.zeros, numbers.bits)
    return parts


def int_quantized_parts(numbers: Numbers) -> dict[str, Tensor]:
    signed = [[value - 128 for value in row] for row in numbers.values]
    return {
        "weight": torch.tensor(signed, dtype=torch.int8),
        "weight_scale": numbers.scales.float(),
    }


def write(
    directory: Path,
    config: dict[str, Any],
    parts_of: Callable[[Numbers], dict[str, Tensor]],
    *,
    bits: int,
    group_size: int | None,
    symmetric: bool,
    **settings: Any,
) -> QuantizedFiles:
    """A tiny Llama whose layers' linears are random numbers; `config` is quantization_config."""
    fakes_tiny_model.llama(directory, **(SHAPE | settings))
    file = directory / "model.safetensors"
    tensors = load_file(file)
    weights: dict[str, Tensor] = {}
    for seed, name in enumerate(sorted(n for n in tensors if n.endswith("_proj.weight"))):
        num_rows, num_columns = tensors.pop(name).shape
        numbers = random_numbers(
            (num_rows, num_columns),
            bits=bits,
            group_size=group_size or num_columns,
            symmetric=symmetric,
            seed=seed,
        )
        weights[name] = numbers.floats()
        layer = name.removesuffix(".weight")
        tensors |= {f"{layer}.{part}": tensor for part, tensor in parts_of(numbers).items()}
    save_file(tensors, file)
    settings_file = directory / "config.json"
    values = json.loads(settings_file.read_text())
    settings_file.write_text(json.dumps(values | {"quantization_config": config}))
    return QuantizedFiles(load_card(ModelSource("huggingface", directory, "tiny")), weights)


def compressed(
    storage: str,
    bits: int,
    *,
    group_size: int | None,
    symmetric: bool = True,
    activations: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The quantization_config of compressed-tensors."""
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "channel" if group_size is None else "group",
        "group_size": group_size,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": storage,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
