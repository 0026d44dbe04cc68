"""Copies of KV blocks in C++ against torch's, of odd sizes and from any place in memory."""

from __future__ import annotations

import pytest
import torch
from fakes_cpu_kernels import kernel_threads
from tandem_kernels.cpu.library import cpu_library
from tandem_kernels.kv_blocks import CpuBlockCopies, TorchBlockCopies, block_copies

TWIN = TorchBlockCopies()


def cpu_copies() -> CpuBlockCopies:
    copies = block_copies(torch.device("cpu"))
    assert isinstance(copies, CpuBlockCopies)
    return copies


def random_bytes(*shape: int, offset: int = 0) -> torch.Tensor:
    """Contiguous, `offset` bytes behind an aligned address."""
    size = torch.Size(shape).numel()
    return torch.randint(256, (size + offset,), dtype=torch.uint8)[offset:].view(shape)


@pytest.mark.parametrize("offset", [0, 1, 33])
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("runs", [1, 6])
@pytest.mark.parametrize(
    ("run_bytes", "first", "last"), [(1056, 0, 1056), (300, 100, 200), (9, 2, 3)]
)
def test_blocks_are_packed_and_unpacked_as_torch_does(
    run_bytes: int, first: int, last: int, runs: int, num_threads: int, offset: int
) -> None:
    torch.manual_seed(0)
    pool = random_bytes(500, runs, run_bytes, offset=offset)
    twin_pool = pool.clone()
    part, twin_part = pool[:, :, first:last], twin_pool[:, :, first:last]
    blocks = torch.randperm(500)[:301].tolist()
    packed = random_bytes(301, runs, last - first, offset=offset)
    expected = torch.empty_like(packed)
    with kernel_threads(num_threads):
        cpu_copies().pack(part, blocks, packed)
        TWIN.pack(twin_part, blocks, expected)
        assert torch.equal(packed, expected)
        arrived = random_bytes(301, runs, last - first, offset=offset)
        cpu_copies().unpack(part, blocks, arrived)
        TWIN.unpack(twin_part, blocks, arrived)
        assert torch.equal(pool, twin_pool)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_blocks_are_copied_within_the_pool_as_torch_does(num_threads: int) -> None:
    torch.manual_seed(0)
    pool = random_bytes(400, 4, 1000)
    twin_pool = pool.clone()
    shuffled = torch.randperm(400).tolist()
    pairs = [*zip(shuffled[:150], shuffled[150:300], strict=True), (shuffled[0], shuffled[399])]
    with kernel_threads(num_threads):
        cpu_copies().copy(pool, pairs)
    TWIN.copy(twin_pool, pairs)
    assert torch.equal(pool, twin_pool)


def test_without_a_compiled_library_torch_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu_library() is not None
    monkeypatch.setattr("tandem_kernels.kv_blocks.cpu_library", lambda: None)
    assert isinstance(block_copies(torch.device("cpu")), TorchBlockCopies)
