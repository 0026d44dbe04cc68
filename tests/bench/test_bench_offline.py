"""Offline measurements on a real engine with a small random model."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes_tiny_model import llama
from typer.testing import CliRunner

from bench.batching import BatchingReport
from bench.cli import app
from bench.offline import attempt, offline_config
from bench.prompts import TokenRange
from bench.report import read_json
from bench.throughput import OfflineRun, ThroughputReport, throughput_report
from bench.workload import Segment, WorkItem
from core.errors import ConfigError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tiny")
    llama(directory)
    return str(directory)


def small(*arguments: str) -> list[str]:
    """The arguments with settings that make a small engine."""
    settings = ("parallel.num_threads=1", "cache.num_blocks=128", "scheduler.max_num_seqs=8")
    return [*arguments, *(part for setting in settings for part in ("--set", setting))]


def test_throughput_computes_every_token_it_counts(model: str, tmp_path: Path) -> None:
    json_file = tmp_path / "throughput.json"
    arguments = ["throughput", "--model", model, "--num-requests", "5", "--repeats", "2"]
    lengths = ["--input-len", "20", "--output-len", "3:9", "--json", str(json_file)]
    result = CliRunner().invoke(app, small(*arguments, *lengths), catch_exceptions=False)
    report = read_json(json_file, ThroughputReport)
    assert result.exit_code == 0 and "output tokens/s" in result.stdout
    assert (report.num_requests, report.repeats, report.num_prompt_tokens) == (5, 2, 100)
    assert [run.num_output_tokens for run in report.runs] == [report.num_output_tokens] * 2
    assert 15 <= report.num_output_tokens <= 45
    assert report.output_tokens_per_s == report.num_output_tokens / report.duration_s


def test_batching_offline_compares_both_strategies(model: str, tmp_path: Path) -> None:
    json_file = tmp_path / "batching.json"
    arguments = ["batching", "--offline", "--model", model, "--num-requests", "8"]
    lengths = ["--concurrency", "4", "--output-range", "2:16", "--json", str(json_file)]
    result = CliRunner().invoke(app, small(*arguments, *lengths), catch_exceptions=False)
    report = read_json(json_file, BatchingReport)
    assert result.exit_code == 0
    assert [run.strategy for run in report.runs] == ["static", "continuous"]
    assert report.runs[0].num_wanted_tokens == report.runs[1].num_wanted_tokens
    assert report.runs[0].num_computed_tokens > report.runs[1].num_computed_tokens


def test_an_item_becomes_an_attempt_that_runs_to_its_full_length() -> None:
    made = attempt(WorkItem(3, (Segment("a", 4),), 9), "run", TokenRange(5, 50))
    assert len(made.token_ids) == made.num_prompt_tokens == 4
    assert made.sampling.max_tokens == 9
    assert made.sampling.ignore_eos and made.sampling.greedy


def test_throughput_is_that_of_the_median_run() -> None:
    runs = [OfflineRun(10, 30, duration_s) for duration_s in (4.0, 1.0, 2.0)]
    report = throughput_report("m", 6, runs)
    assert (report.duration_s, report.requests_per_s) == (2.0, 3.0)
    assert (report.output_tokens_per_s, report.total_tokens_per_s) == (15.0, 20.0)


def test_prompts_stay_within_a_small_vocabulary() -> None:
    assert TokenRange().within(131) == TokenRange(32, 131)
    assert TokenRange().within(49_152) == TokenRange()


def test_offline_settings_are_the_configurations_own() -> None:
    config = offline_config("m", {"cache.block_size": "32"}, max_num_seqs=7)
    assert (config.model.model, config.cache.block_size) == ("m", 32)
    assert config.scheduler.max_num_seqs == 7
    with pytest.raises(ConfigError, match="block_sizes"):
        offline_config("", {"cache.block_sizes": "32"})
