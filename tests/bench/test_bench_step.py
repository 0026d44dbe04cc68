"""`tandem bench step` on a real engine with a small random model, and the costs it counts with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes_tiny_model import llama
from tandem_kernels.cpu.library import cpu_library
from tandem_kernels.cpu.linear import CpuLinear, LinearPacker
from typer.testing import CliRunner

from bench.cli import app
from bench.report import read_json
from bench.step import PARTS, StepReport
from core.clock import MonotonicClock
from core.config import ModelConfig
from core.errors import ConfigError
from core.kv_spec import KVGroup, KVSpec
from core.roofline import Roofline
from engine.peaks import Peaks, best_of
from model.loader import load_model
from model.quantization.recipe import resolve_recipe
from model.tensor_parallel import TensorParallel
from text.card import ModelCard
from text.model_card import load_card
from text.model_source import ModelSource
from text.step_costs import kv_bytes, product_kind, prompt_operations, step_weight_bytes


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    llama(path)
    return path


@pytest.fixture
def card(directory: Path) -> ModelCard:
    return load_card(ModelSource("huggingface", directory, "tiny"))


def run(directory: Path, *arguments: str) -> tuple[StepReport, str]:
    json_file = directory / "step.json"
    fixed = ["step", "--model", str(directory), "--threads", "1", "--json", str(json_file)]
    result = CliRunner().invoke(app, [*fixed, *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return read_json(json_file, StepReport), result.stdout


def test_every_case_is_measured_and_taken_apart(directory: Path) -> None:
    cases = ["--batch", "1,5", "--context", "20,70", "--prompt-len", "30"]
    report, shown = run(directory, *cases, "--breakdown")
    assert [(case.batch, case.context) for case in report.decode] == [
        (1, 20),
        (5, 20),
        (1, 70),
        (5, 70),
    ]
    for case in report.decode:
        assert case.num_steps >= 5 and set(case.parts_s) == set(PARTS)
        assert 0 < case.scheduling_share < 1 and case.mbu > 0
        assert case.fastest_step_s <= case.step_s
    assert [(case.prompt_len, case.num_chunks) for case in report.prefill] == [(30, 1)]
    assert not report.skipped
    assert "Parts of a decode step" in shown and "Prefill" in shown


def test_contexts_are_cut_and_what_does_not_fit_is_said(directory: Path) -> None:
    settings = ["--set", "cache.num_blocks=30", "--prompt-len", "256", "--batch", "1,3"]
    report, shown = run(directory, *settings, "--context", "8192", "--temperature", "0.8")
    assert [(case.batch, case.context) for case in report.decode] == [(1, 256 - 48)]
    assert [reason.partition(":")[0] for reason in report.skipped] == [
        "batch 3, context 208",
        "prompt of 256",
    ]
    assert "skipped" in shown


def test_a_batch_that_is_no_number_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match="--batch 1,x"):
        CliRunner().invoke(app, ["step", "--batch", "1,x"], catch_exceptions=False)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "w8a8"])
def test_torch_tells_the_limits_where_there_are_no_kernels(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("engine.peaks.cpu_library", lambda: None)
    monkeypatch.setattr("engine.peaks._READ_BYTES", 1 << 20)
    monkeypatch.setattr("engine.peaks._SIZE", 64)
    limits = Peaks(torch.device("cpu"), kind, MonotonicClock()).measure()
    assert limits.read_bytes_per_s > 0 and limits.matmul_ops_per_s > 0
    assert limits.matmul_type == kind
    faster = Roofline(limits.read_bytes_per_s * 2, 0.0, kind)
    assert best_of(limits, faster) == Roofline(
        faster.read_bytes_per_s, limits.matmul_ops_per_s, kind
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4", "w8a8"])
def test_no_bytes_are_counted_that_packed_weights_do_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str, tied: bool
) -> None:
    assert cpu_library() is not None, "the tests need a compiler, as the kernels' own do"
    # Whole panels of 32 rows and whole groups of 32 columns, so that nothing is padded
    sizes = {"vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    card = llama(tmp_path, **sizes, **heads, tie_word_embeddings=tied).card
    packed, pack = list[CpuLinear](), LinearPacker.pack

    def noted(packer: LinearPacker, weight: Any, bias: Any, **more: Any) -> CpuLinear:
        packed.append(pack(packer, weight, bias, **more))
        return packed[-1]

    monkeypatch.setattr(LinearPacker, "pack", noted)
    model = ModelConfig.model_validate({"quantization": quantization})
    load_model(
        card,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        tp=TensorParallel.single(),
        recipe=resolve_recipe(model, card),
    )
    norms = 2 * 64 * (2 * card.num_layers + 1)
    assert len(packed) == 4 * card.num_layers + 1, "the head once, tied or not"
    counted = step_weight_bytes(card, model, "bfloat16")
    assert counted == sum(linear.packed_bytes for linear in packed) + norms


@pytest.mark.parametrize(
    ("quantization", "stored", "kind"),
    [
        ("none", "Q4_1", "bfloat16"),
        ("w8a8", "none", "w8a8"),
        ("int4", "none", "int4"),
        ("auto", "none", "bfloat16"),
        ("auto", "Q8_0", "int8"),
        ("auto", "gptq-int4-g128", "int4"),
    ],
)
def test_the_rate_of_multiplying_is_that_of_what_is_multiplied(
    card: ModelCard, quantization: str, stored: str, kind: str
) -> None:
    model = ModelConfig.model_validate({"quantization": quantization})
    assert product_kind(replace(card, quantization=stored), model, "bfloat16") == kind


def test_kv_beyond_a_window_is_not_read() -> None:
    spec = KVSpec((KVGroup(1, 2, 8), KVGroup(3, 2, 8, window=10)), 4, "bfloat16")
    per_layer = 2 * 2 * 8 * 2
    assert kv_bytes(spec, 5, 100) == 5 * per_layer * (100 + 3 * 10)
    assert kv_bytes(spec, 1, 7) == per_layer * 4 * 7


def test_a_prompt_costs_its_linears_and_half_of_its_square(card: ModelCard) -> None:
    one, two = prompt_operations(card, 1), prompt_operations(card, 2)
    attention = 4 * card.num_layers * card.num_heads * card.head_dim
    head = 2 * card.vocab_size * card.hidden_size
    linear = one - head - attention
    assert two == head + 2 * linear + 3 * attention
