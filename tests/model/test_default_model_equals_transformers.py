"""The real default model, against transformers reading the same GGUF file by its own code."""

from __future__ import annotations

import pytest
import torch
from fakes_generation import Generation
from fakes_oracle import load_oracle
from fakes_tiny_model import TinyModel

from model.causal_lm import CausalLM
from model.loader import load_model
from model.tensor_parallel import TensorParallel
from text.model_card import ModelCard, load_card
from text.model_source import ModelSource
from text.tokenizer import load_tokenizer

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "2, 3, 5, 7, 11, 13,",
    "Der Zug nach Köln fährt um 12:45 Uhr ab, weil",
]


@pytest.fixture(scope="module")
def card(default_model_source: ModelSource) -> ModelCard:
    torch.set_num_threads(1)
    return load_card(default_model_source)


@pytest.fixture(scope="module")
def model(card: ModelCard) -> CausalLM:
    return load_model(
        card, dtype=torch.float32, device=torch.device("cpu"), tp=TensorParallel.single()
    )


@pytest.fixture(scope="module")
def oracle(card: ModelCard) -> TinyModel:
    return TinyModel(card, load_oracle(card.source.path))


@pytest.fixture(scope="module")
def prompts(card: ModelCard) -> list[list[int]]:
    tokenizer = load_tokenizer(card)
    return [tokenizer.encode(text) for text in PROMPTS]


def test_logits_equal_transformers(
    card: ModelCard, model: CausalLM, oracle: TinyModel, prompts: list[list[int]]
) -> None:
    generation = Generation(model, card)
    batch = [(str(i), ids) for i, ids in enumerate(prompts)]
    for ids, logits in zip(prompts, generation.step(batch), strict=True):
        torch.testing.assert_close(logits, oracle.logits(ids), atol=1e-3, rtol=0)


def test_greedy_continuations_equal_transformers(
    card: ModelCard, model: CausalLM, oracle: TinyModel, prompts: list[list[int]]
) -> None:
    generation = Generation(model, card)
    for ids in prompts[:3]:
        assert generation.greedy(str(ids), ids, 32) == oracle.greedy(ids, 32)


def test_decode_in_one_batch_equals_one_at_a_time(
    card: ModelCard, model: CausalLM, prompts: list[list[int]]
) -> None:
    alone = Generation(model, card)
    expected = [alone.greedy(str(i), ids, 8) for i, ids in enumerate(prompts)]
    together = Generation(model, card)
    batch, outputs = list(enumerate(prompts)), [list[int]() for _ in prompts]
    for _ in range(8):
        logits = together.step([(str(i), ids) for i, ids in batch])
        batch = [(i, [int(rows[-1].argmax())]) for (i, _), rows in zip(batch, logits, strict=True)]
        for i, ids in batch:
            outputs[i] += ids
    assert outputs == expected
