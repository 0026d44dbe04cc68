"""`tandem bench step` on a real engine with a small random model, and the costs it counts with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes_tiny_model import llama
from typer.testing import CliRunner

from bench.cli import app
from bench.peaks import Peaks, best_of
from bench.report import read_json
from bench.step import PARTS, Roofline, StepReport
from bench.step_costs import kv_bytes, prompt_operations, weight_bytes
from core.clock import MonotonicClock
from core.config import load_config
from core.errors import ConfigError
from core.kv_spec import KVGroup, KVSpec
from text.card import ModelCard
from text.model_card import load_card
from text.model_source import ModelSource


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
    monkeypatch.setattr("bench.peaks.cpu_library", lambda: None)
    monkeypatch.setattr("bench.peaks._READ_BYTES", 1 << 20)
    monkeypatch.setattr("bench.peaks._SIZE", 64)
    limits = Peaks(torch.device("cpu"), kind, MonotonicClock()).measure()
    assert limits.read_bytes_per_s > 0 and limits.matmul_ops_per_s > 0
    assert limits.matmul_type == kind
    faster = Roofline(limits.read_bytes_per_s * 2, 0.0, kind)
    assert best_of(limits, faster) == Roofline(
        faster.read_bytes_per_s, limits.matmul_ops_per_s, kind
    )


def test_weights_are_counted_once_and_by_their_precision(card: ModelCard) -> None:
    vocabulary = card.vocab_size * card.hidden_size
    read = card.num_parameters - (0 if card.tie_word_embeddings else vocabulary)
    model = load_config(environ={}).model
    assert weight_bytes(card, model, "float32") == 4 * read
    assert weight_bytes(card, model, "bfloat16") == 2 * read
    rounded = load_config(environ={}, overrides=["model.quantization=int8"]).model
    matrices = 2 * vocabulary  # the head's, kept as they are
    assert matrices + read - vocabulary < weight_bytes(card, rounded, "bfloat16") < 2 * read


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
