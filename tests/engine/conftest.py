"""One compute thread, since two at a barrier wait a scheduler tick whenever another process runs;
and both samplers, which keep the same promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from fakes_byte_model import write_byte_model
from tandem_kernels import select_sampling

from engine.compiled_sampler import CompiledSampler
from engine.sampler import Sampler, TokenSampler
from text.model_card import ModelSource, load_card
from text.tokenizer import Tokenizer, load_tokenizer


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


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Every byte is a token, with three special ones before them."""
    directory = write_byte_model(tmp_path_factory.mktemp("byte-model"))
    return load_tokenizer(load_card(ModelSource("huggingface", directory, "bytes")))
