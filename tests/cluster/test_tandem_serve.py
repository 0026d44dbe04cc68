"""The real thing: `tandem serve default`, used by the other verbs, hurt, and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fakes_process
import httpx
import pytest
from fakes_process import Child, child, tandem

from cluster import litter
from cluster.run_record import Run, live_runs

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "What is the capital of France?"


@dataclass(frozen=True)
class Served:
    """A server that is ready, and how commands find it."""

    child: Child
    root: Path

    def run(self) -> Run:
        (run,) = live_runs(self.root)
        return run

    def command(self, *arguments: str) -> str:
        """The output of a `tandem` command about this server; it must succeed."""
        finished = subprocess.run(
            tandem(*arguments, "--set", f"cluster.run_dir={self.root}"),
            capture_output=True,
            text=True,
            cwd=fakes_process.ROOT,
            timeout=fakes_process.DEADLINE_S,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def ask(self, **extras: object) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": QUESTION}], "model": MODEL, **extras}
        url = f"http://{self.run().http_address}/v1/chat/completions"
        return httpx.post(url, json=body, timeout=fakes_process.DEADLINE_S)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("run")
    command = tandem("serve", "default", "--port", "0", "--grpc-port", "0")
    command += ["--set", f"cluster.run_dir={root}", "--set", "cache.num_blocks=128"]
    command += ["--set", "model.max_model_len=1024", "--set", "parallel.num_threads=1"]
    # Who gets no core for a while is not replaced, unless a test ends it
    command += ["--set", "worker.stuck_after_s=30", "--set", "worker.heartbeat_s=3"]
    with child(command) as started:
        try:
            started.wait_for("curl http://")
            yield Served(started, root)
        finally:
            started.process.send_signal(signal.SIGTERM)
            started.end()
            litter.sweep(root)


def test_the_printed_request_is_answered_by_both_workers(served: Served) -> None:
    curl = next(line for line in served.child.lines if "curl http://" in line)
    reply = subprocess.run(
        ["bash", "-c", curl.strip().replace("curl ", "curl -sS ", 1)],
        capture_output=True,
        text=True,
        timeout=fakes_process.DEADLINE_S,
    )
    assert reply.returncode == 0, reply.stderr
    assert "Paris" in reply.stdout
    facts = served.ask(max_tokens=8, include_timings=True).json()["tandem"]
    assert (facts["prefill_worker"], facts["decode_worker"]) == ("prefill-0", "decode-0")


def test_status_shows_a_ready_server_and_its_processes(served: Served) -> None:
    text = served.command("status")
    assert f"{MODEL}  ready" in text
    for name in ("router", "prefill-0", "decode-0"):
        assert name in text


def test_chat_streams_an_answer_from_the_server_that_runs(served: Served) -> None:
    answer = served.command("chat", QUESTION, "--temperature", "0", "--max-tokens", "16")
    assert "Paris" in answer


def test_logs_are_found_by_name(served: Served) -> None:
    assert "loading weights" in served.command("logs", "prefill-0")
    assert "==> router <==" in served.command("logs")


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_a_killed_worker_is_replaced_and_requests_are_served_again(
    served: Served, name: str
) -> None:
    before = served.run()
    victim = next(process for process in before.processes if process.name == name)
    os.kill(victim.pid, signal.SIGKILL)
    served.child.wait_for(f"{name} serves again")
    reply = served.ask(max_tokens=8, temperature=0)
    assert reply.status_code == 200, reply.text
    assert "Paris" in reply.json()["choices"][0]["message"]["content"]


def test_an_audit_finds_the_books_of_all_workers_balanced(served: Served) -> None:
    found = json.loads(served.command("kv", "audit", "--json", "--timeout", "60"))
    assert found["sound"]
    assert {each["worker_id"] for each in found["workers"]} == {"prefill-0", "decode-0"}
    assert all(sum(e["blocks_by_state"].values()) == e["num_blocks"] for e in found["workers"])


def test_drained_with_restart_a_worker_is_replaced_and_nobody_notices(served: Served) -> None:
    before = {process.name: process.pid for process in served.run().processes}
    assert "decode-0 is replaced" in served.command("drain", "decode-0", "--restart")
    after = {process.name: process.pid for process in served.run().processes}
    assert after.keys() == before.keys() and after["decode-0"] != before["decode-0"]
    assert served.ask(max_tokens=8, temperature=0).status_code == 200


def test_drained_for_good_a_worker_is_gone_and_the_server_stays(served: Served) -> None:
    assert "nothing remained" in served.command("drain", "prefill-0")
    served.child.wait_for("prefill-0 ended: drained, to be retired")
    assert "prefill-0" not in [process.name for process in served.run().processes]
    assert "prefill-0" not in served.command("status")


def test_stop_ends_it_and_leaves_nothing(served: Served) -> None:
    run = served.run()
    assert "stopped" in served.command("stop")
    assert served.child.end() == 0
    assert litter.processes_of(Path(run.temp_dir)) == set()
    assert not Path(run.temp_dir).exists()
    assert live_runs(served.root) == []
