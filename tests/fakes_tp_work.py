"""What the rank processes of the tensor-parallel tests do; importable, so that they can spawn."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from fakes_generation import Generation
from fakes_tp_group import Groups
from torch import Tensor

from core.errors import WorkerLostError
from model.loader import load_model
from model.tensor_parallel import TensorParallel
from text.model_card import ModelCard

PROMPT = [(7 * i + i * i) % 97 for i in range(37)]
OTHER = [(5 * i + 3) % 97 for i in range(20)]


def run_all(groups: Groups, directory: Path, cards: dict[str, ModelCard], sizes: list[int]) -> None:
    """One life of a rank process, since starting one takes long; results go to `directory`."""
    for size in sizes:
        tp = groups.join(f"model-{size}", size)
        if tp is not None:
            for name, card in cards.items():
                torch.save(logits(tp, card), directory / f"{name}-{size}-{tp.rank}.pt")
    tp = groups.join("collectives", 3)
    if tp is not None:
        torch.save(sum_and_columns(tp), directory / f"collectives-{tp.rank}.pt")
        torch.save(sum_of_equal_rows(tp), directory / f"rows-{tp.rank}.pt")
        lose_a_peer(tp, directory)


def logits(tp: TensorParallel, card: ModelCard) -> dict[str, object]:
    """Of a prefill of two sequences, then of decode rows beside a chunk."""
    model = load_model(card, dtype=torch.float32, device=torch.device("cpu"), tp=tp)
    generation = Generation(model, card)
    first = generation.step([("a", PROMPT), ("b", OTHER[:5])])
    second = generation.step([("a", [3]), ("c", [4]), ("b", OTHER[5:])])
    return {"logits": torch.cat(first + second), "kv_heads": list(model.kv_heads)}


def sum_and_columns(tp: TensorParallel) -> tuple[Tensor, Tensor]:
    """The collectives themselves, with unequal shares of 8 columns."""
    total = tp.all_reduce(torch.full((2, 3), float(tp.rank + 1)))
    columns, share = torch.arange(8.0).repeat(2, 1), tp.share(8)
    return total, tp.all_gather_columns(columns[:, share.start : share.stop], 8)


def sum_of_equal_rows(tp: TensorParallel) -> Tensor:
    """Every rank has one row of its own, 96 times."""
    row = torch.randn(576, generator=torch.Generator().manual_seed(tp.rank))
    return tp.all_reduce(row.repeat(96, 1))


def lose_a_peer(tp: TensorParallel, directory: Path) -> None:
    """Rank 1 dies without a word; the others write down which error their all-reduce raised."""
    if tp.rank == 1:
        os._exit(9)
    try:
        # One may still succeed in part; the group is broken for the next at the latest
        for _ in range(3):
            tp.all_reduce(torch.ones(1 << 20))
    except WorkerLostError as error:
        (directory / f"lost-{tp.rank}.txt").write_text(error.message)
