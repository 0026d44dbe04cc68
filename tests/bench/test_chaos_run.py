"""A short run against a real house: real processes, real faults, a real Redis."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis_server
from fakes_process import child, tandem

from bench.chaos.command import ChaosReport
from bench.chaos.process import session_members
from bench.report import read_json


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_half_a_minute_of_faults_loses_nothing(
    tmp_path: Path, redis_binary: redis_server.Binary, ranks: str
) -> None:
    program = redis_server.write_script(redis_binary, tmp_path / "redis-server")
    report = tmp_path / "report.json"
    command = tandem("bench", "chaos", "--duration", "30s", "--period", "4s", "--seed", "3")
    command += ["--redis-server", str(program), "--json", str(report)]
    command += ["--logs", str(tmp_path / "logs"), "--clients", "4"]
    command += ["--ranks", ranks]
    with child(command) as run:
        status = run.end()
        assert status == 0, run.output
    found = read_json(report, ChaosReport)
    assert found.verdict.holds
    assert found.verdict.num_faults > 5 and found.verdict.results["right"] > 40
    assert not session_members(run.process.pid)
