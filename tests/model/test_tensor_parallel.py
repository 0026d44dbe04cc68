"""Tensor parallelism over real processes and real gloo groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fakes_tiny_model
import fakes_tp_work
import pytest
import torch
from fakes_tp_group import RankProcesses
from torch.distributed import Work

from core.errors import ConfigError
from core.kv_partition import kv_heads_of_rank
from model.loader import load_model
from model.tensor_parallel import TensorParallel

# The default model's heads and widths; a vocabulary that no group size divides
SHAPE: dict[str, Any] = {
    "vocab_size": 1001,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


def test_every_group_size_gives_the_logits_of_one_process(tmp_path: Path) -> None:
    tiny = fakes_tiny_model.llama(
        tmp_path / "hf", attention_bias=True, mlp_bias=True, tie_word_embeddings=True, **SHAPE
    )
    sizes = [1, 2, 3, 4]
    codes = RankProcesses(4).run(fakes_tp_work.save_logits, tmp_path, tiny.card, sizes)
    assert codes == [0, 0, 0, 0]
    alone = torch.load(tmp_path / "1-0.pt")["logits"]
    prompt = torch.tensor(fakes_tp_work.PROMPT)
    torch.testing.assert_close(
        alone[: len(prompt)], tiny.logits(prompt.tolist()), atol=1e-3, rtol=1e-5
    )
    for size in sizes:
        for rank in range(size):
            result = torch.load(tmp_path / f"{size}-{rank}.pt")
            assert result["kv_heads"] == list(kv_heads_of_rank(3, size, rank))
            # Sums are reordered across ranks: relative to logits of about 50
            torch.testing.assert_close(result["logits"], alone, atol=1e-4, rtol=1e-5)


def test_collectives_sum_and_join_unequal_shares(tmp_path: Path) -> None:
    assert RankProcesses(3).run(fakes_tp_work.sum_and_gather, tmp_path) == [0, 0, 0]
    for rank in range(3):
        total, joined = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(total, torch.full((2, 3), 6.0))
        assert torch.equal(joined, torch.arange(8.0).repeat(2, 1))


def test_a_lost_peer_is_a_typed_error_on_every_other_rank(tmp_path: Path) -> None:
    assert RankProcesses(3).run(fakes_tp_work.lose_a_peer, tmp_path) == [0, 9, 0]
    for rank in (0, 2):
        assert f"rank {rank} of 3 lost its group" in (tmp_path / f"{rank}.txt").read_text()


def test_more_ranks_than_query_heads_is_refused(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path).card
    with pytest.raises(ConfigError, match="tensor_parallel_size 7"):
        load_model(
            card,
            dtype=torch.float32,
            device=torch.device("cpu"),
            tp=TensorParallel(0, 7, _Unused()),
        )


class _Unused:
    """The group of a worker that never got as far as a collective."""

    def allreduce(self, tensors: list[torch.Tensor], /) -> Work:
        raise AssertionError("refusal comes first")

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], /) -> Work:
        raise AssertionError("refusal comes first")
