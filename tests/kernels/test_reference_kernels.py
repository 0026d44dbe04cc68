"""The torch twins of the small kernels, against their textbook formulas in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tandem_kernels import Activation, LayerCache
from tandem_kernels.reference import ReferenceKernels
from torch import Tensor

KERNELS = ReferenceKernels()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def formula(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("num_tokens", [1, 3, 64])
@pytest.mark.parametrize("hidden", [1, 7, 576])
def test_rms_norm_equals_its_formula(num_tokens: int, hidden: int) -> None:
    x, weight = torch.randn(num_tokens, hidden), torch.randn(hidden)
    out = KERNELS.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(out.double(), formula(x, weight, 1e-5), atol=1e-5, rtol=1e-5)


def test_add_rms_norm_returns_the_sum_as_the_next_residual() -> None:
    x, residual, weight = torch.randn(5, 48), torch.randn(5, 48), torch.randn(48)
    total = x + residual
    normed, new_residual = KERNELS.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    assert torch.equal(new_residual, total)
    assert torch.equal(normed, KERNELS.rms_norm(total, weight, 1e-6))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rope_is_a_rotation_of_complex_numbers(dtype: torch.dtype) -> None:
    angles = torch.rand(100, 8) * 6
    table = torch.cat((angles.cos(), angles.sin()), 1)
    q, k = torch.randn(7, 6, 16).to(dtype), torch.randn(7, 2, 16).to(dtype)
    positions = torch.tensor([0, 99, 3, 3, 50, 1, 98])
    turn = torch.polar(torch.ones(7, 1, 8), angles[positions].unsqueeze(1))
    for x, out in zip((q, k), KERNELS.rope(q, k, positions, table), strict=True):
        turned = torch.complex(*x.float().chunk(2, -1)) * turn
        expected = torch.cat((turned.real, turned.imag), -1)
        assert out.dtype == dtype
        tolerance = 1e-6 if dtype == torch.float32 else 2**-8
        torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("block_size", [8, 16, 128])
def test_written_kv_lies_at_its_slots_and_nowhere_else(block_size: int) -> None:
    k_cache = torch.zeros(6, 3, block_size, 4)
    v_cache = torch.zeros(6, 3, block_size, 4)
    slots = torch.randperm(6 * block_size)[:29]
    k, v = torch.randn(29, 3, 4), torch.randn(29, 3, 4)
    KERNELS.write_kv(k, v, LayerCache(k_cache, v_cache), slots)
    for cache, values in ((k_cache, k), (v_cache, v)):
        by_slot = cache.transpose(1, 2).reshape(-1, 3, 4)
        assert torch.equal(by_slot[slots], values)
        by_slot[slots] = 0
        assert not by_slot.any()


@pytest.mark.parametrize("shape", [(3, 7), (2, 5, 48)])
def test_layer_norm_equals_its_formula(shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(shape) + 2, torch.randn(shape[-1]), torch.randn(shape[-1])
    out = KERNELS.layer_norm(x, weight, bias, 1e-3)
    centred = x.double() - x.double().mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight + bias
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_norms_serve_every_head() -> None:
    x, weight = torch.randn(5, 3, 8), torch.randn(8)
    apart = [KERNELS.rms_norm(x[:, head], weight, 1e-5) for head in range(3)]
    assert torch.equal(KERNELS.rms_norm(x, weight, 1e-5), torch.stack(apart, 1))


def test_rope_leaves_what_it_has_no_angles_for() -> None:
    angles = torch.rand(9, 4)
    table = torch.cat((angles.cos(), angles.sin()), 1)
    q, k = torch.randn(9, 3, 20), torch.randn(9, 1, 20)
    for x, out in zip((q, k), KERNELS.rope(q, k, torch.arange(9), table), strict=True):
        alone, _ = KERNELS.rope(x[..., :8], x[..., :8], torch.arange(9), table)
        assert torch.equal(out[..., :8], alone)
        assert torch.equal(out[..., 8:], x[..., 8:])


FORMULAS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x / (1 + (-x).exp()),
    "gelu": lambda x: x / 2 * (1 + torch.erf(x / 2**0.5)),
    "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("activation", FORMULAS)
def test_activations_equal_their_formulas(activation: Activation) -> None:
    gate, up = torch.randn(5, 33) * 3, torch.randn(5, 33)
    expected = FORMULAS[activation](gate.double())
    plain = KERNELS.activate(gate, activation, gated=False)
    torch.testing.assert_close(plain.double(), expected, atol=1e-6, rtol=1e-5)
    gated = KERNELS.activate(torch.cat((gate, up), 1), activation, gated=True)
    torch.testing.assert_close(gated.double(), expected * up, atol=1e-6, rtol=1e-5)
