"""GPTQ, AWQ, compressed-tensors and GGUF weights are kept exactly as their files have them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakes_quantized_files as files
import gguf
import numpy as np
import pytest
import torch
from fakes_generation import Generation
from safetensors.torch import load_file, save_file
from tandem_kernels.reference import ReferenceKernels
from tandem_kernels.reference_linear import dequantized
from torch import Tensor

from core.errors import ConfigError
from model.checkpoint import open_checkpoint
from model.loader import load_model
from model.quantization.gguf_blocks import packed_blocks
from model.quantization.recipe import FLOATS, Recipe
from model.quantization.whole_numbers import part
from model.tensor_parallel import TensorParallel
from text.model_card import ModelCard, load_card

DYNAMIC = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
STORED = Recipe("stored")


def gptq(directory: Path, **changes: Any) -> files.QuantizedFiles:
    how: dict[str, Any] = {"bits": 4, "group_size": 32, "symmetric": False} | changes
    version = how.pop("version", "gptq")
    config = {
        "quant_method": "gptq",
        "bits": how["bits"],
        "group_size": how["group_size"] or -1,
        "sym": how["symmetric"],
        "desc_act": False,
        "checkpoint_format": version,
    }
    shift = 1 if version == "gptq" else 0
    return files.write(directory, config, lambda n: files.gptq_parts(n, shift), **how)


def awq(directory: Path) -> files.QuantizedFiles:
    config = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}
    how: dict[str, Any] = {"bits": 4, "group_size": 64, "symmetric": False}
    return files.write(directory, config, files.awq_parts, **how)


def packed(
    directory: Path, bits: int, group_size: int | None, symmetric: bool
) -> files.QuantizedFiles:
    config = files.compressed("pack-quantized", bits, group_size=group_size, symmetric=symmetric)
    return files.write(
        directory,
        config,
        lambda n: files.pack_quantized_parts(n, symmetric=symmetric),
        bits=bits,
        group_size=group_size,
        symmetric=symmetric,
    )


def w8a8(directory: Path, activations: dict[str, Any] | None = None) -> files.QuantizedFiles:
    config = files.compressed("int-quantized", 8, group_size=None, activations=activations)
    return files.write(
        directory, config, files.int_quantized_parts, bits=8, group_size=None, symmetric=True
    )


WRITERS: dict[str, Callable[[Path], files.QuantizedFiles]] = {
    "gptq-4": lambda d: gptq(d),
    "gptq-4-symmetric-128": lambda d: gptq(d, group_size=128, symmetric=True, hidden_size=128),
    "gptq-4-v2": lambda d: gptq(d, version="gptq_v2"),
    "gptq-8": lambda d: gptq(d, bits=8),
    "gptq-8-symmetric-rows": lambda d: gptq(d, bits=8, group_size=None, symmetric=True),
    "awq": awq,
    "packed-4": lambda d: packed(d, 4, 32, True),
    "packed-4-zero-points": lambda d: packed(d, 4, 64, False),
    "packed-8": lambda d: packed(d, 8, None, True),
    "w8a8": lambda d: w8a8(d, DYNAMIC),
    "w8a16": w8a8,
}


def scheme_of(name: str) -> str:
    if name == "w8a8":
        return "w8a8"
    return "int8" if name in ("gptq-8", "gptq-8-symmetric-rows", "packed-8", "w8a16") else "int4"


@pytest.mark.parametrize("name", WRITERS)
def test_stored_numbers_stand_for_the_weights_that_were_packed(name: str, tmp_path: Path) -> None:
    written = WRITERS[name](tmp_path)
    assert written.card.quantization != "none"
    with open_checkpoint(written.card) as checkpoint:
        for weight_name, weight in written.weights.items():
            assert checkpoint.shapes[weight_name] == tuple(weight.shape)
            torch.testing.assert_close(checkpoint.read(weight_name), weight, atol=1e-6, rtol=1e-5)
            kept = checkpoint.read_quantized(weight_name)
            assert kept is not None
            assert torch.equal(dequantized(kept), checkpoint.read(weight_name))
            assert kept.scheme == scheme_of(name)


def logits(card: ModelCard, recipe: Recipe) -> Tensor:
    device, tp = torch.device("cpu"), TensorParallel.single()
    kernels = ReferenceKernels()
    model = load_model(
        card, dtype=torch.float32, device=device, tp=tp, recipe=recipe, kernels=kernels
    )
    [rows] = Generation(model, card).step([("a", [3, 1, 4, 1, 5, 9, 2, 6])])
    return rows


@pytest.mark.parametrize("name", ["gptq-4", "awq", "packed-8", "w8a16"])
def test_a_model_kept_as_it_is_stored_computes_what_its_floats_compute(
    name: str, tmp_path: Path
) -> None:
    card = WRITERS[name](tmp_path).card
    torch.testing.assert_close(logits(card, STORED), logits(card, FLOATS), atol=1e-4, rtol=1e-4)


def test_rounded_activations_cost_little(tmp_path: Path) -> None:
    card = w8a8(tmp_path, DYNAMIC).card
    exact, rounded = logits(card, FLOATS), logits(card, STORED)
    assert not torch.equal(exact, rounded)
    assert (rounded - exact).norm() < 0.03 * exact.norm()


def test_columns_in_activation_order_come_as_floats(tmp_path: Path) -> None:
    written = gptq(tmp_path)
    file = tmp_path / "model.safetensors"
    layer = "model.layers.0.mlp.down_proj"
    tensors = load_file(file)
    num_columns = len(tensors[f"{layer}.g_idx"])
    index = torch.arange(num_columns) % (num_columns // 32)
    save_file(tensors | {f"{layer}.g_idx": index.int()}, file)
    seed = sorted(written.weights).index(f"{layer}.weight")
    shape = tuple(written.weights[f"{layer}.weight"].shape)
    numbers = files.random_numbers(
        (shape[0], shape[1]), bits=4, group_size=32, symmetric=False, seed=seed
    )
    with open_checkpoint(written.card) as checkpoint:
        assert checkpoint.read_quantized(f"{layer}.weight") is None
        expected = numbers.floats(lambda i: int(index[i]))
        torch.testing.assert_close(checkpoint.read(f"{layer}.weight"), expected)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "fp8"}, "quant_method 'fp8'"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "bits 3"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size is 0"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version 'gemv'"),
        (files.compressed("float-quantized", 8, group_size=None), "format 'float-quantized'"),
        (files.compressed("pack-quantized", 2, group_size=None), "num_bits 2"),
        (
            files.compressed(
                "int-quantized", 8, group_size=None, activations=DYNAMIC | {"dynamic": False}
            ),
            "dynamic False",
        ),
        (
            files.compressed(
                "int-quantized", 8, group_size=None, symmetric=False, activations=DYNAMIC
            ),
            "input_activations is supported together with",
        ),
    ],
)
def test_what_is_not_supported_is_named(config: dict[str, Any], named: str, tmp_path: Path) -> None:
    card = w8a8(tmp_path).card
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"quantization_config": config}))
    with pytest.raises(ConfigError, match=named):
        load_card(card.source)


def test_a_layer_that_lacks_a_part_is_named(tmp_path: Path) -> None:
    card = awq(tmp_path).card
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.qzeros"]
    save_file(tensors, tmp_path / "model.safetensors")
    with (
        pytest.raises(ConfigError, match=r"mlp\.up_proj lacks qzeros of awq"),
        open_checkpoint(card),
    ):
        pass


@pytest.mark.parametrize("ggml_type", ["Q4_0", "Q4_1", "Q8_0"])
def test_gguf_blocks_are_kept_exactly(ggml_type: str) -> None:
    kind = gguf.GGMLQuantizationType[ggml_type]
    weight = np.random.default_rng(0).standard_normal((6, 96)).astype(np.float32)
    data = gguf.quants.quantize(weight, kind)
    kept = packed_blocks(ggml_type, torch.from_numpy(data))
    assert kept is not None and kept.group_size == 32
    assert kept.scheme == ("int8" if ggml_type == "Q8_0" else "int4")
    assert torch.equal(dequantized(kept), torch.from_numpy(gguf.quants.dequantize(data, kind)))
    tail = part(kept, range(1, 3), range(32, 96))
    assert tail is not None
    assert torch.equal(dequantized(tail), dequantized(kept)[1:3, 32:])
    assert part(kept, None, range(16, 96)) is None
    assert packed_blocks("F32", torch.from_numpy(data)) is None


def test_groups_larger_than_kernels_take_are_cut(tmp_path: Path) -> None:
    card = gptq(tmp_path, group_size=256, hidden_size=256, intermediate_size=512).card
    with open_checkpoint(dataclasses.replace(card)) as checkpoint:
        kept = checkpoint.read_quantized("model.layers.0.mlp.down_proj.weight")
        assert kept is not None and kept.group_size == 128 and kept.scales.shape == (256, 4)
        assert torch.equal(
            dequantized(kept), checkpoint.read("model.layers.0.mlp.down_proj.weight")
        )
