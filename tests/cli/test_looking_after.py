"""`status`, `logs` and `stop` where no cluster is needed to try them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fakes_process import child, python

from cli.logs import log_files
from cli.runs import base_url, the_run
from cli.serve import ready_text
from cli.status import memory_of, readiness, status_text
from cli.stop import end_process
from cluster.run_record import Run, RunDirectory, new_run
from cluster.shell import Ready
from core.config import Config, load_config
from core.errors import ConfigError

WAITING = "import signal; print('up', flush=True); signal.pause()"


def config(root: Path) -> Config:
    return load_config(environ={}, overrides=[f"cluster.run_dir={root}"])


def run_of(directory: RunDirectory, http_address: str = "127.0.0.1:8000") -> Run:
    router = Ready("router", 5, http_address, "127.0.0.1:50051")
    return Run(
        run_id=directory.run_id,
        pid=os.getpid(),
        model="m",
        http_address=http_address,
        grpc_address="127.0.0.1:50051",
        ray_address="",
        temp_dir="",
        log_dir=str(directory.log_dir),
        processes=(router,),
    )


def test_commands_find_the_newest_run_or_the_named_one(tmp_path: Path) -> None:
    with new_run(tmp_path) as first, new_run(tmp_path) as second:
        first.write(run_of(first, "127.0.0.1:1"))
        second.write(run_of(second, "127.0.0.1:2"))
        newest = max(first.run_id, second.run_id)
        assert the_run(config(tmp_path)).run_id == newest
        assert the_run(config(tmp_path), first.run_id).http_address == "127.0.0.1:1"
        with pytest.raises(ConfigError, match="no run is called nobody"):
            the_run(config(tmp_path), "nobody")


def test_without_a_run_commands_say_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tandem serve"):
        base_url(config(tmp_path), None)


def test_a_run_that_is_not_ready_has_no_url_yet(tmp_path: Path) -> None:
    with new_run(tmp_path) as directory:
        run = run_of(directory, "")
        directory.write(run)
        assert readiness(run) == "starting"
        with pytest.raises(ConfigError, match="not ready yet"):
            base_url(config(tmp_path), None)


def test_a_given_url_is_taken_with_or_without_its_version(tmp_path: Path) -> None:
    assert base_url(config(tmp_path), "http://host:1/v1/") == "http://host:1"
    assert base_url(config(tmp_path), "http://host:1") == "http://host:1"


def test_status_names_processes_and_addresses(tmp_path: Path) -> None:
    with new_run(tmp_path) as directory:
        text = status_text(run_of(directory), "ready", ())
    assert "http://127.0.0.1:8000/v1" in text
    assert "router       pid 5" in text


def test_status_shows_the_memory_of_every_process_and_their_sum(tmp_path: Path) -> None:
    with new_run(tmp_path) as directory, child(python(WAITING)) as one:
        one.wait_for("up")
        run = run_of(directory)
        memory = memory_of(replace(run, processes=(Ready("p", one.process.pid, ""),)))
        text = status_text(run, "ready", memory)
    pids = [each.pid for each in memory]
    assert {os.getpid(), one.process.pid} <= set(pids) and len(pids) == len(set(pids))
    assert memory[0].pss_mib == max(each.pss_mib for each in memory) > 1
    assert f"{sum(each.pss_mib for each in memory):.1f} MiB  in all" in text


def test_a_router_that_does_not_answer_is_told_apart_from_one_that_is_not_ready(
    tmp_path: Path,
) -> None:
    with new_run(tmp_path) as directory:
        assert readiness(run_of(directory, "127.0.0.1:9")).startswith("no answer")


def test_the_ready_text_holds_a_request_to_paste(tmp_path: Path) -> None:
    with new_run(tmp_path) as directory:
        text = ready_text(run_of(directory))
    assert "curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type:" in text
    assert '"model": "m"' in text


def test_logs_of_an_unknown_process_list_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "prefill-0.log").write_text("x")
    (tmp_path / "router.log").write_text("y")
    assert log_files(tmp_path, "router") == [tmp_path / "router.log"]
    assert len(log_files(tmp_path, None)) == 2
    with pytest.raises(ConfigError, match="there are: prefill-0, router"):
        log_files(tmp_path, "decode-9")


def test_stop_waits_until_the_process_is_gone() -> None:
    with child(python("import signal; print('up', flush=True); signal.pause()")) as started:
        started.wait_for("up")
        assert end_process(started.process.pid, timeout_s=60.0)
        assert started.end() == -15


def test_stop_gives_up_on_a_process_that_will_not_end() -> None:
    code = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert not end_process(process.pid, timeout_s=0.1)
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_stopping_what_has_already_ended_is_fine() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=60)
    assert end_process(ended.pid, timeout_s=1.0)
