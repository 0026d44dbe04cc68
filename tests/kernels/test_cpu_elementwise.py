"""C++ norms, rotations, KV writes and gates against their torch twins, of odd sizes too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from fakes_cpu_kernels import cpu_kernels, kernel_threads
from tandem_kernels import Activation, LayerCache
from tandem_kernels.reference import ReferenceKernels
from torch import Tensor

TWIN = ReferenceKernels()
DTYPES = [torch.float32, torch.bfloat16]
ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with kernel_threads(1):
        yield


def assert_close(out: Tensor, expected: Tensor) -> None:
    """The twin computes in float32, and rounds once for bfloat16."""
    tolerance = 2e-6 if out.dtype == torch.float32 else 2**-8
    torch.testing.assert_close(out.float(), expected.float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 3, 64])
@pytest.mark.parametrize("hidden", [1, 7, 16, 100, 576, 2048])
def test_norms_equal_their_twins(num_tokens: int, hidden: int, dtype: torch.dtype) -> None:
    x, residual, weight = (torch.randn(n, hidden).to(dtype) for n in (num_tokens, num_tokens, 1))
    kernels, weight = cpu_kernels(dtype), weight[0]
    assert_close(kernels.rms_norm(x, weight, 1e-5), TWIN.rms_norm(x.float(), weight.float(), 1e-5))
    normed, total = kernels.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, kernels.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 15, 16, 33, 1536])
def test_silu_mul_equals_its_twin(width: int, dtype: torch.dtype) -> None:
    gate_up = torch.randn(5, 2 * width).to(dtype) * 8
    assert_close(
        cpu_kernels(dtype).activate(gate_up, "silu", gated=True),
        TWIN.activate(gate_up.float(), "silu", gated=True),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 3, 64])
@pytest.mark.parametrize("hidden", [1, 7, 16, 100, 576, 2048])
def test_layer_norms_equal_their_twins(num_tokens: int, hidden: int, dtype: torch.dtype) -> None:
    x = (torch.randn(num_tokens, hidden) * 3 + 20).to(dtype)  # a mean that isn't small
    weight, bias = torch.randn(2, hidden).to(dtype)
    out = cpu_kernels(dtype).layer_norm(x, weight, bias, 1e-5)
    expected = TWIN.layer_norm(x.double(), weight.double(), bias.double(), 1e-5)
    tolerance = 2e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "d"), [(1, 64), (9, 64), (3, 20), (2, 7)])
def test_every_head_is_normed_by_itself(num_heads: int, d: int, dtype: torch.dtype) -> None:
    kernels = cpu_kernels(dtype)
    heads = torch.randn(5, num_heads + 4, d).to(dtype)[:, 2 : 2 + num_heads]
    weight, bias = torch.randn(2, d).to(dtype)
    rows = heads.reshape(-1, d)
    normed = kernels.rms_norm(heads, weight, 1e-6)
    assert torch.equal(normed.view(-1, d), kernels.rms_norm(rows, weight, 1e-6))
    normed = kernels.layer_norm(heads, weight, bias, 1e-6)
    assert torch.equal(normed.view(-1, d), kernels.layer_norm(rows, weight, bias, 1e-6))


# float32 implementations of GELU differ by 1e-6 around -3.5
EXACT = {
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x / 2 * torch.erfc(-x / 2**0.5),
    "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 15, 16, 33, 1536])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_exact_but_for_rounding(
    activation: Activation, width: int, dtype: torch.dtype
) -> None:
    kernels, x = cpu_kernels(dtype), torch.randn(5, 2 * width).to(dtype) * 4
    plain = kernels.activate(x, activation, gated=False)
    assert_close(plain, EXACT[activation](x.double()))
    gate, up = x.double().chunk(2, dim=-1)
    assert_close(kernels.activate(x, activation, gated=True), EXACT[activation](gate) * up)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_close_everywhere(activation: Activation) -> None:
    x = torch.cat((torch.linspace(-12, 12, 20_001), torch.tensor([0.0, -1e30, 1e30, torch.nan])))
    out = cpu_kernels(torch.float32).activate(x[None], activation, gated=False)[0]
    exact = EXACT[activation](x.double())
    torch.testing.assert_close(out.double(), exact, atol=5e-7, rtol=5e-7, equal_nan=True)


def test_silu_mul_of_extremes() -> None:
    gate = torch.tensor([0.0, -0.0, 1e30, -1e30, 88.0, -88.0, 127.9, -127.9, float("nan")])
    out = cpu_kernels(torch.float32).activate(
        torch.cat((gate, torch.ones(9)))[None], "silu", gated=True
    )[0]
    torch.testing.assert_close(out, torch.nn.functional.silu(gate), equal_nan=True)


def qkv(
    num_tokens: int, heads: int, kv_heads: int, d: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as views of one product's rows."""
    rows = torch.randn(num_tokens, heads + 2 * kv_heads, d).to(dtype)
    return rows[:, :heads], rows[:, heads : heads + kv_heads], rows[:, heads + kv_heads :]


def pair(caches: Tensor) -> LayerCache:
    return LayerCache(caches[0], caches[1])


def angles(num_positions: int, d: int) -> Tensor:
    turn = torch.rand(num_positions, d // 2) * 6
    return torch.cat((turn.cos(), turn.sin()), 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 2, 40])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "d"), [(9, 3, 64), (4, 4, 80), (1, 1, 2), (6, 2, 96), (3, 1, 20)]
)
@pytest.mark.parametrize("block_size", [8, 128])
def test_rotating_and_writing_equals_its_twin(
    num_tokens: int, heads: int, kv_heads: int, d: int, block_size: int, dtype: torch.dtype
) -> None:
    q, k, v = qkv(num_tokens, heads, kv_heads, d, dtype)
    positions, table = torch.randint(0, 50, (num_tokens,)), angles(50, d)
    slots = torch.randperm(6 * block_size)[:num_tokens]
    caches = torch.zeros(2, 6, kv_heads, block_size, d, dtype=dtype)
    expected_caches, apart_caches = caches.clone(), caches.clone()
    expected = TWIN.rope_write_kv(q, k, v, positions, table, pair(expected_caches), slots)
    kernels = cpu_kernels(dtype)
    apart = kernels.rope(q.clone(), k.clone(), positions, table)
    kernels.write_kv(apart[1], v, pair(apart_caches), slots)
    out = kernels.rope_write_kv(q, k, v, positions, table, pair(caches), slots)
    assert_close(out, expected)
    assert_close(caches, expected_caches)
    assert torch.equal(out, apart[0])
    assert torch.equal(caches, apart_caches)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_row_has_the_same_bits_in_any_batch_on_any_thread(
    dtype: torch.dtype, num_threads: int
) -> None:
    kernels = cpu_kernels(dtype)
    x, weight = torch.randn(300, 1000).to(dtype), torch.randn(1000).to(dtype)
    rows = [kernels.rms_norm(x[i : i + 1], weight, 1e-5) for i in range(300)]
    gated = [kernels.activate(x[i : i + 1], "silu", gated=True) for i in range(300)]
    with kernel_threads(num_threads):
        assert torch.equal(kernels.rms_norm(x, weight, 1e-5), torch.cat(rows))
        assert torch.equal(kernels.activate(x, "silu", gated=True), torch.cat(gated))
        added, _ = kernels.add_rms_norm(x.clone(), torch.zeros_like(x), weight, 1e-5)
        assert torch.equal(added, torch.cat(rows))


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_write_every_token(num_threads: int) -> None:
    q, k, v = qkv(400, 9, 3, 64, torch.float32)
    positions, table = torch.arange(400), angles(400, 64)
    one, more = torch.zeros(2, 2, 25, 3, 16, 64)
    slots = torch.randperm(400)
    kernels = cpu_kernels(torch.float32)
    alone = kernels.rope_write_kv(q.clone(), k, v, positions, table, pair(one), slots)
    with kernel_threads(num_threads):
        threaded = kernels.rope_write_kv(q, k, v, positions, table, pair(more), slots)
    assert torch.equal(threaded, alone)
    assert torch.equal(one, more)
