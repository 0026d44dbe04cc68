"""`tandem bench attention` on cases small enough for a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.attention import AttentionReport
from bench.attention_command import attention
from bench.report import read_json
from core.errors import ConfigError


def test_every_case_is_measured_against_a_limit(tmp_path: Path) -> None:
    attention(
        batch="1,2",
        context="64",
        prompt_len="64",
        chunk=32,
        cache_type="bfloat16",
        heads="2,1,16",
        threads=1,
        json_file=tmp_path / "report.json",
    )
    report = read_json(tmp_path / "report.json", AttentionReport)
    assert [case.kind for case in report.cases] == ["decode", "decode", "prefill", "prefill"]
    assert [case.chunk for case in report.cases] == [1, 1, 32, 64]
    assert all(case.share > 0 for case in report.cases)


def test_a_list_that_holds_no_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match="1,x"):
        attention(batch="1,x")
