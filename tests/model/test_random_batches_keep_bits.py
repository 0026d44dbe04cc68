"""Two hundred random batches: every token's logits have the bits of its sequence computed alone.

A model of the default one's widths, two layers of it, on the kernels that serve. Batches mix
sequences, decode rows and chunks of any length; threads come and go.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fakes_tiny_model
import pytest
import torch
from fakes_cpu_kernels import kernel_threads
from fakes_generation import Generation
from torch import Tensor

from model.causal_lm import CausalLM
from model.loader import load_model
from model.quantization.recipe import Recipe
from model.tensor_parallel import TensorParallel
from text.model_card import ModelCard

NUM_BATCHES = 200
VOCAB_SIZE = 300
WIDTHS = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 1024,
    "vocab_size": VOCAB_SIZE,
}
PRECISIONS = {
    "float32": (torch.float32, Recipe()),
    "bfloat16": (torch.bfloat16, Recipe()),
    "w8a8": (torch.bfloat16, Recipe("w8a8")),
    "int8": (torch.bfloat16, Recipe("int8")),
    "int4": (torch.bfloat16, Recipe("int4")),
}


@dataclass(frozen=True)
class Sequence:
    """Token ids, and their logits [T, vocab] when nothing else is computed."""

    token_ids: list[int]
    logits: Tensor


def sequences_alone(model: CausalLM, card: ModelCard) -> list[Sequence]:
    chance = random.Random(7)
    made = []
    for length in (1, 15, 40, 97, 260, 300, 530, 777):
        ids = [chance.randrange(VOCAB_SIZE) for _ in range(length)]
        [logits] = Generation(model, card).step([("it", ids)])
        made.append(Sequence(ids, logits))
    return made


def random_batches(sequences: list[Sequence]) -> Iterator[tuple[bool, list[tuple[int, int, int]]]]:
    """(sequence, begin, end) of a batch's members, those of one token first; True where a batch
    begins everything anew."""
    chance = random.Random(11)
    progress: dict[int, int] = {}
    for _ in range(NUM_BATCHES):
        unfinished = [i for i, s in enumerate(sequences) if progress.get(i, 0) < len(s.token_ids)]
        anew = not progress or not unfinished
        if anew:
            progress, unfinished = {}, list(range(len(sequences)))
        members = []
        for i in chance.sample(unfinished, chance.randint(1, len(unfinished))):
            begin = progress.get(i, 0)
            most = len(sequences[i].token_ids) - begin
            wanted = 1 if chance.random() < 0.4 else chance.choice([2, 7, 16, 33, 64, 129, 400])
            members.append((i, begin, begin + min(wanted, most)))
            progress[i] = begin + min(wanted, most)
        yield anew, sorted(members, key=lambda m: m[2] - m[1] > 1)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_random_batches_change_no_bit(tmp_path: Path, precision: str) -> None:
    card = fakes_tiny_model.llama(tmp_path, **WIDTHS).card
    dtype, recipe = PRECISIONS[precision]
    model = load_model(
        card,
        dtype=dtype,
        device=torch.device("cpu"),
        tp=TensorParallel.single(),
        recipe=recipe,
    )
    sequences = sequences_alone(model, card)
    generation = Generation(model, card, num_blocks=256)
    for number, (anew, members) in enumerate(random_batches(sequences)):
        if anew:
            generation = Generation(model, card, num_blocks=256)
        batch = [(str(i), sequences[i].token_ids[begin:end]) for i, begin, end in members]
        with kernel_threads(1 + number % 3):
            logits = generation.step(batch)
        for (i, begin, end), rows in zip(members, logits, strict=True):
            assert torch.equal(rows, sequences[i].logits[begin:end]), (number, i, begin, end)
