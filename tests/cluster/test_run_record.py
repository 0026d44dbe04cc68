"""What other commands can find out about a run, and what is cleaned up after a killed one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster import litter
from cluster.run_record import (
    KEPT_RUNS,
    Run,
    RunDirectory,
    dead_runs,
    latest_log_dir,
    live_runs,
    new_run,
)
from cluster.shell import Ready


def run_of(directory: RunDirectory, temp_dir: str = "") -> Run:
    return Run(
        run_id=directory.run_id,
        pid=os.getpid(),
        model="m",
        http_address="127.0.0.1:1",
        grpc_address="127.0.0.1:2",
        ray_address="",
        temp_dir=temp_dir,
        log_dir=str(directory.log_dir),
        processes=(Ready("prefill-0", 7, "127.0.0.1:3"),),
    )


def test_a_run_is_seen_while_it_lasts_and_its_logs_afterwards(tmp_path: Path) -> None:
    with new_run(tmp_path) as directory:
        run = run_of(directory)
        directory.write(run)
        assert live_runs(tmp_path) == [run]
        assert dead_runs(tmp_path) == []
        (directory.log_dir / "prefill-0.log").write_text("hello")
    assert live_runs(tmp_path) == []
    assert dead_runs(tmp_path) == []
    assert latest_log_dir(tmp_path) == directory.log_dir


def test_a_run_without_a_record_yet_is_not_listed(tmp_path: Path) -> None:
    with new_run(tmp_path):
        assert live_runs(tmp_path) == []


def test_there_are_no_runs_where_nothing_was_served(tmp_path: Path) -> None:
    assert live_runs(tmp_path / "absent") == []
    assert latest_log_dir(tmp_path / "absent") is None


def test_only_the_last_few_logs_are_kept(tmp_path: Path) -> None:
    for _ in range(KEPT_RUNS + 4):
        with new_run(tmp_path):
            pass
    assert len(list(tmp_path.iterdir())) <= KEPT_RUNS + 1


def test_a_live_run_survives_the_pruning_of_others(tmp_path: Path) -> None:
    with new_run(tmp_path) as first:
        first.write(run_of(first))
        for _ in range(KEPT_RUNS + 4):
            with new_run(tmp_path):
                pass
        assert [run.run_id for run in live_runs(tmp_path)] == [first.run_id]


def test_what_a_killed_run_left_is_swept_processes_and_files(tmp_path: Path) -> None:
    root, temp_dir = tmp_path / "run", tmp_path / "tandem-x"
    temp_dir.mkdir()
    with new_run(root) as directory:
        directory.write(run_of(directory, str(temp_dir)))
        # A live run is nobody's litter.
        assert litter.sweep(root) == 0
        record = (directory.path / "run.json").read_text()
    (directory.path / "run.json").write_text(record)  # as if the process had been killed
    with (temp_dir / "log").open("w") as log:
        orphan = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=log
        )
    assert litter.processes_of(temp_dir) == {orphan.pid}
    assert litter.sweep(root) == 1
    assert orphan.wait(timeout=20) == -9
    assert orphan.stdin is not None
    orphan.stdin.close()
    assert not temp_dir.exists()
    assert litter.sweep(root) == 0


def test_processes_of_other_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "ab").mkdir()
    with (tmp_path / "ab" / "log").open("w") as log:
        other = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=log
        )
    try:
        assert litter.processes_of(tmp_path / "a") == set()
        litter.remove(tmp_path / "a")
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate(timeout=20)
