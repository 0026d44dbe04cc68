"""`tandem bench structure`: both kinds of steps are measured, and the ratio says what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes_byte_model import write_byte_model

from bench.offline import offline_config
from bench.structure import structure_case
from bench.structure_run import measure_structure


def test_a_case_is_medians_and_their_ratios() -> None:
    pairs_s = [(0.02, 0.022), (0.01, 0.01), (0.5, 0.55)]
    case = structure_case("x", 8, pairs_s, [0.001, 0.0005])
    assert case.num_steps == 3
    assert case.ratio == pytest.approx(1.1)
    assert case.mask_share == pytest.approx(0.0375)


def test_every_case_has_steps_of_both_kinds(tmp_path: Path) -> None:
    settings = {"cache.num_blocks": "512", "parallel.num_threads": "1", "model.dtype": "float32"}
    config = offline_config(str(write_byte_model(tmp_path / "model")), settings, max_num_seqs=2)
    told: list[str] = []
    report = measure_structure(config, batch=2, num_tokens=12, repeats=1, progress=told.append)
    assert [case.name for case in report.cases] == ["greedy", "temperature 0.8"]
    for case in report.cases:
        assert case.num_steps > 5 and min(case.free_step_s, case.structured_step_s) > 0
        assert case.mask_s > 0
    assert told and report.compile_s > 0
