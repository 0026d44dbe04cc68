"""One compute thread, since two at a barrier wait a scheduler tick whenever another process runs;
and both samplers, which keep the same promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tandem_kernels import select_sampling

from engine.compiled_sampler import CompiledSampler
from engine.sampler import Sampler, TokenSampler


@pytest.fixture(autouse=True)
def one_compute_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["torch", "compiled"])
def make_sampler(request: pytest.FixtureRequest) -> Callable[[int], TokenSampler]:
    """A sampler for a vocabulary of so many tokens."""
    return Sampler if request.param == "torch" else compiled_sampler


def compiled_sampler(vocab_size: int) -> CompiledSampler:
    kernel = select_sampling(torch.device("cpu"))
    assert kernel is not None
    return CompiledSampler(vocab_size, kernel)
