"""CASES 11, as `tandem serve` runs it: a rank is killed, and its group is replaced in place. And
Ray's GCS is stopped: nobody who serves needs it.

A rank is an actor of its group's placement group; the leader is another.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes_cases import check_same, some_tokens
from fakes_process import DEADLINE_S, Child, child, tandem

from cluster import litter
from cluster.run_record import Run, live_runs
from core.clock import MonotonicClock

RANK = "tandem-decode-0-rank-1"
NICE = 7
ASKED = {"prompt": some_tokens(100, seed=3), "max_tokens": 200, "ignore_eos": True}
SETTINGS = (
    "parallel.prefill_tensor_parallel_size=2",
    "parallel.decode_tensor_parallel_size=2",
    "parallel.num_threads=1",
    "model.dtype=float32",
    "model.max_model_len=1024",
    "cache.num_blocks=128",
    "router.no_worker_timeout_s=120",
    f"worker.prefill_nice={NICE}",
    # Whom a test does not kill is not to be replaced on a busy machine.
    "parallel.step_timeout_s=60",
    "worker.stuck_after_s=30",
    "worker.heartbeat_s=3",
    "kv_transfer.timeout_s=30",
)


@dataclass(frozen=True)
class Served:
    """A running `tandem serve`."""

    child: Child
    root: Path

    @property
    def run(self) -> Run:
        (run,) = live_runs(self.root)
        return run

    def pid(self, worker: str) -> int:
        """Of a worker's leader."""
        return next(process.pid for process in self.run.processes if process.name == worker)

    def actors(self, name: str) -> list[int]:
        """Actors of this name, or one that begins with it, by what they call themselves."""
        found = litter.processes_of(Path(self.run.temp_dir))
        return [pid for pid in found if name in command_of(pid)]

    @contextlib.contextmanager
    def stream(self) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of an answer, as they come."""
        url = f"http://{self.run.http_address}/v1/completions"
        body = {"model": self.run.model, "temperature": 0, "logprobs": 2, "stream": True, **ASKED}
        with httpx.stream("POST", url, json=body, timeout=DEADLINE_S) as response:
            assert response.status_code == 200
            data = (line.removeprefix("data: ") for line in response.iter_lines() if line)
            yield (json.loads(line) for line in data if line != "[DONE]")


def command_of(pid: int) -> str:
    """The command line of a process; none of one that has just ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("run")
    command = tandem("serve", str(model), "--port", "0", "--grpc-port", "0")
    for setting in (f"cluster.run_dir={root}", *SETTINGS):
        command += ["--set", setting]
    with child(command) as started:
        try:
            started.wait_for("curl http://")
            yield Served(started, root)
        finally:
            started.process.send_signal(signal.SIGTERM)
            started.end()
            litter.sweep(root)


def whole(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The events of a stream as one answer, as far as `check_same` looks at it."""
    parts = [event["choices"][0] for event in events if event["choices"]]
    logprobs = {
        name: [one for part in parts if part["logprobs"] for one in part["logprobs"][name]]
        for name in ("tokens", "top_logprobs")
    }
    return {"choices": [{"logprobs": logprobs, "finish_reason": parts[-1]["finish_reason"]}]}


def test_every_rank_of_a_prefill_group_gives_way(served: Served) -> None:
    actors = served.actors("tandem-prefill-0")
    assert len(actors) == 2
    assert min(os.getpriority(os.PRIO_PROCESS, pid) for pid in actors) >= NICE


@pytest.mark.parametrize("at_least_s", [0.0, pytest.param(20.0, marks=pytest.mark.slow)])
def test_streams_go_on_while_rays_gcs_is_stopped(served: Served, at_least_s: float) -> None:
    """One that was under way, and those that begin meanwhile: with the same workers to the end."""
    with served.stream() as undisturbed:
        expected = whole(list(undisturbed))
    (gcs,) = served.actors("gcs_server")
    workers = {process.name: process.pid for process in served.run.processes}
    clock = MonotonicClock()
    with served.stream() as events:
        before = [next(events) for _ in range(10)]
        os.kill(gcs, signal.SIGSTOP)
        stopped_at = clock.now()
        try:
            answers = [whole([*before, *events])]
            while len(answers) < 2 or clock.now() - stopped_at < at_least_s:
                with served.stream() as during:
                    answers.append(whole(list(during)))
            assert state_of(gcs) == "T", "it was stopped all the time"
        finally:
            os.kill(gcs, signal.SIGCONT)
    for answer in answers:
        check_same(answer, expected)
    with served.stream() as afterwards:
        check_same(whole(list(afterwards)), expected)
    assert {process.name: process.pid for process in served.run.processes} == workers


def state_of(pid: int) -> str:
    """What the system says of a process: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_killed_ranks_group_is_replaced_and_its_stream_goes_on(served: Served) -> None:
    with served.stream() as undisturbed:
        expected = whole(list(undisturbed))
    leader, bystander = served.pid("decode-0"), served.pid("prefill-0")
    (rank,) = served.actors(RANK)
    with served.stream() as events:
        before = [next(events) for _ in range(10)]
        os.kill(rank, signal.SIGKILL)
        served.child.wait_for("decode-0 serves again")
        answer = whole([*before, *events])
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == ASKED["max_tokens"]
    check_same(answer, expected)
    assert served.pid("decode-0") != leader, "the group ended as one"
    (replaced,) = served.actors(RANK)
    assert replaced != rank
    assert served.pid("prefill-0") == bystander
