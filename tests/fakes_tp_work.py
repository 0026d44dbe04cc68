"""What the rank processes of the tensor-parallel tests do; importable, so that they can spawn."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from fakes_generation import Generation
from fakes_tp_group import Groups

from core.errors import WorkerLostError
from model.loader import load_model
from text.model_card import ModelCard

PROMPT = [(7 * i + i * i) % 97 for i in range(37)]
OTHER = [(5 * i + 3) % 97 for i in range(20)]


def save_logits(groups: Groups, directory: Path, card: ModelCard, sizes: list[int]) -> None:
    """For each group size: logits of a prefill, then of decode rows beside a chunk."""
    for size in sizes:
        tp = groups.of_size(size)
        if tp is None:
            continue
        model = load_model(card, dtype=torch.float32, device=torch.device("cpu"), tp=tp)
        generation = Generation(model, card)
        first = generation.step([("a", PROMPT), ("b", OTHER[:5])])
        second = generation.step([("a", [3]), ("c", [4]), ("b", OTHER[5:])])
        result = {"logits": torch.cat(first + second), "kv_heads": list(model.kv_heads)}
        torch.save(result, directory / f"{size}-{groups.rank}.pt")


def lose_a_peer(groups: Groups, directory: Path) -> None:
    """Rank 1 dies without a word; the others write down which error their all-reduce raised."""
    tp = groups.of_size(3)
    assert tp is not None
    tp.all_reduce(torch.ones(4))
    if tp.rank == 1:
        os._exit(9)
    try:
        # The first may still succeed in part; the group is broken for the second at the latest
        tp.all_reduce(torch.ones(1 << 20))
        tp.all_reduce(torch.ones(1 << 20))
    except WorkerLostError as error:
        (directory / f"{tp.rank}.txt").write_text(error.message)


def sum_and_gather(groups: Groups, directory: Path) -> None:
    """The collectives themselves, with unequal shares."""
    tp = groups.of_size(3)
    assert tp is not None
    total = tp.all_reduce(torch.full((2, 3), float(tp.rank + 1)))
    columns = torch.arange(8.0).repeat(2, 1)
    share = tp.share(8)
    joined = tp.all_gather_columns(columns[:, share.start : share.stop], 8)
    torch.save((total, joined), directory / f"{tp.rank}.pt")
