"""Tensor parallelism over real processes and real gloo groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fakes_tiny_model
import fakes_tp_work
import pytest
import torch
from fakes_tiny_model import TinyModel
from fakes_tp_group import RankProcesses
from torch.distributed import Work

from core.errors import ConfigError
from core.kv_partition import kv_heads_of_rank
from model.loader import load_model
from model.tensor_parallel import TensorParallel

# The default model's heads and widths; a vocabulary that no group size divides
LLAMA: dict[str, Any] = {
    "vocab_size": 1001,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
}
SMALL: dict[str, Any] = {
    "hidden_size": 72,
    "intermediate_size": 91,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "pad_token_id": 0,
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": LLAMA,
    "Qwen2": SMALL,
    "Qwen3": SMALL | {"head_dim": 16},
    "Gemma2": SMALL | {"head_dim": 16, "sliding_window": 7},
    "Gemma3": SMALL | {"head_dim": 16, "sliding_window": 7},
    "Phi3": SMALL,
    "Phi": SMALL,
}
SIZES = [1, 2, 3, 4]


@dataclass(frozen=True)
class Outcome:
    """What four rank processes left behind."""

    models: dict[str, TinyModel]
    directory: Path
    exit_codes: list[int | None]

    def logits(self, model: str) -> torch.Tensor:
        """Of a single process."""
        found: torch.Tensor = torch.load(self.directory / f"{model}-1-0.pt")["logits"]
        return found


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    directory = tmp_path_factory.mktemp("ranks")
    models = {
        name: fakes_tiny_model.make(name, directory / name, **settings)
        for name, settings in MODELS.items()
    }
    cards = {name: tiny.card for name, tiny in models.items()}
    codes = RankProcesses(4).run(fakes_tp_work.run_all, directory, cards, SIZES)
    return Outcome(models, directory, codes)


@pytest.mark.parametrize("model", MODELS)
def test_one_rank_equals_transformers(outcome: Outcome, model: str) -> None:
    expected = outcome.models[model].logits(fakes_tp_work.PROMPT)
    alone = outcome.logits(model)[: len(expected)]
    torch.testing.assert_close(alone, expected, atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", SIZES)
def test_every_group_size_gives_the_logits_of_one_process(
    outcome: Outcome, size: int, model: str
) -> None:
    for rank in range(size):
        result = torch.load(outcome.directory / f"{model}-{size}-{rank}.pt")
        assert result["kv_heads"] == list(kv_heads_of_rank(3, size, rank))
        # Sums are reordered across ranks: relative to the largest logits, of about 50
        torch.testing.assert_close(result["logits"], outcome.logits(model), atol=1e-4, rtol=1e-5)


def test_collectives_sum_and_join_unequal_shares(outcome: Outcome) -> None:
    for rank in range(3):
        total, joined = torch.load(outcome.directory / f"collectives-{rank}.pt")
        assert torch.equal(total, torch.full((2, 3), 6.0))
        assert torch.equal(joined, torch.arange(8.0).repeat(2, 1))


def test_a_row_has_the_same_sum_wherever_it_lies(outcome: Outcome) -> None:
    """An all-reduce of three ranks by itself gives each third of a batch other bits."""
    for rank in range(3):
        total = torch.load(outcome.directory / f"rows-{rank}.pt")
        assert torch.equal(total, total[:1].expand_as(total))


def test_a_lost_peer_is_a_typed_error_on_every_other_rank(outcome: Outcome) -> None:
    assert outcome.exit_codes == [0, 9, 0, 0]
    for rank in (0, 2):
        message = (outcome.directory / f"lost-{rank}.txt").read_text()
        assert f"rank {rank} of 3 lost its group" in message


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
