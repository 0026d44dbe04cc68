"""Serving on a real Ray, with stand-ins for engine and router: life, death and clean stop."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import fakes_shared_memory
import httpx
import pytest
import ray
from fakes_cluster import MAY_REFUSE
from fakes_process import DEADLINE_S, Child, child, python

from cluster import litter
from cluster.ray_session import RaySession
from cluster.run_record import Run, live_runs

SERVE = """
import asyncio, sys
import fakes_cluster
from cluster.logs import configure_logging
from cluster.serving import serve
from cluster.shell import Makers
from core.config import load_config
from core.errors import TandemError
maker, *overrides = sys.argv[1:]
config = load_config(environ={}, overrides=["router.http_port=0", *overrides])
configure_logging(config)
makers = Makers(getattr(fakes_cluster, maker), fakes_cluster.make_router)
async def use(run):
    print("serving", run.http_address, flush=True)
    await asyncio.Event().wait()
try:
    sys.exit(asyncio.run(serve(
        config, makers, model_name="m", use=use,
        progress=lambda name, line: print("progress", name, line, flush=True),
    )))
except TandemError as error:
    sys.exit(f"refused: {error}")
"""


UNREGISTERED = """
import os, time
from pathlib import Path
from ray._private import services
get_node = services.get_node
times_left = {times}
def get_node_in_time(*arguments):
    global times_left
    while not os.path.exists({may_fail!r}):
        time.sleep(0.02)  # within Ray's own process, until the test lets it fail
    if not times_left:
        return get_node(*arguments)
    times_left -= 1
    raise Exception("The current node timed out during startup. It could happen.\\nMore of it.")
services.get_node = get_node_in_time
"""
"""A Ray whose processes run, but who don't hear of each other in time, so many times."""


MAY_FAIL = "may-fail"
PATIENT = ("worker.heartbeat_s=5", "state.timeout_s=20")
"""A process that gets no core for a while stays a member, is not replaced, and waits for others."""


@contextlib.contextmanager
def serving(root: Path, maker: str, *overrides: str, before: str = "") -> Iterator[Child]:
    """`before` is Python that runs first."""
    settings = [f"cluster.run_dir={root}", *PATIENT, *overrides]
    with child([*python(before + SERVE), maker, *settings]) as started:
        try:
            yield started
        finally:
            started.process.kill()
            started.end()
            litter.sweep(root)


def the_run(root: Path) -> Run:
    (run,) = live_runs(root)
    return run


def pid_of(run: Run, name: str) -> int:
    return next(process.pid for process in run.processes if process.name == name)


def assert_nothing_left(run: Run, root: Path, shared_memory: set[str]) -> None:
    temp_dir = Path(run.temp_dir)
    assert litter.processes_of(temp_dir) == set()
    assert not temp_dir.exists()
    assert live_runs(root) == []
    assert not list(root.glob("*/run.json"))
    # A pid that is somebody else's by now would not be a child of init or of us.
    assert not [process.name for process in run.processes if is_ours(process.pid)]
    fakes_shared_memory.assert_none_left(shared_memory)


def is_ours(pid: int) -> bool:
    try:
        return b"tandem" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it ends before or while we read
        return False


@pytest.fixture
def shared_memory() -> set[str]:
    """What lies in shared memory before the test."""
    return fakes_shared_memory.names()


def test_a_killed_worker_is_replaced_and_a_signal_leaves_nothing(
    tmp_path: Path, shared_memory: set[str]
) -> None:
    with serving(tmp_path, "make_worker") as started:
        http = started.wait_for("serving").split()[1]
        first = the_run(tmp_path)
        names = [process.name for process in first.processes]
        assert sorted(names) == ["decode-0", "prefill-0", "router"]
        assert sorted(httpx.get(f"http://{http}/", timeout=20.0).json()) == [
            "decode-0",
            "prefill-0",
        ]

        os.kill(pid_of(first, "prefill-0"), signal.SIGKILL)
        started.wait_for("prefill-0 serves again")
        second = the_run(tmp_path)
        assert pid_of(second, "prefill-0") != pid_of(first, "prefill-0")
        assert pid_of(second, "decode-0") == pid_of(first, "decode-0")

        os.kill(pid_of(second, "router"), signal.SIGKILL)
        started.wait_for("router serves again")
        third = the_run(tmp_path)
        assert "prefill-0" in httpx.get(f"http://{third.http_address}/", timeout=20.0).json()

        started.process.send_signal(signal.SIGTERM)
        assert started.end() == 0
        assert_nothing_left(third, tmp_path, shared_memory)
        assert sorted(log.name for log in tmp_path.glob("*/logs/*.log")) == [
            "decode-0.log",
            "prefill-0.log",
            "router.log",
        ]


def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    hasty = ("worker.stuck_after_s=0.5", "worker.heartbeat_s=1")
    with serving(tmp_path, "make_worker", *hasty) as started:
        started.wait_for("serving")
        before = the_run(tmp_path)
        os.kill(pid_of(before, "decode-0"), signal.SIGSTOP)
        started.wait_for("decode-0 serves again")
        assert pid_of(the_run(tmp_path), "decode-0") != pid_of(before, "decode-0")
        assert not is_ours(pid_of(before, "decode-0"))
        started.process.send_signal(signal.SIGINT)
        assert started.end() == 0


def test_workers_that_cannot_stop_are_ended_within_the_grace(
    tmp_path: Path, shared_memory: set[str]
) -> None:
    with serving(tmp_path, "make_stuck_worker", "cluster.stop_timeout_s=2") as started:
        started.wait_for("serving")
        run = the_run(tmp_path)
        started.process.send_signal(signal.SIGTERM)
        started.end()
        assert_nothing_left(run, tmp_path, shared_memory)


def test_a_signal_to_the_whole_process_group_leaves_nothing_either(
    tmp_path: Path, shared_memory: set[str]
) -> None:
    """As `timeout`, systemd and terminals send it: Ray's own processes get it too."""
    with serving(tmp_path, "make_worker") as started:
        started.wait_for("serving")
        run = the_run(tmp_path)
        os.killpg(started.process.pid, signal.SIGTERM)
        started.end()
        assert_nothing_left(run, tmp_path, shared_memory)


def test_a_signal_while_ray_starts_leaves_nothing_either(
    tmp_path: Path, shared_memory: set[str]
) -> None:
    with serving(tmp_path, "make_worker") as started:
        started.wait_for("progress ray starting")
        run = the_run(tmp_path)
        os.killpg(started.process.pid, signal.SIGINT)
        assert started.end() == 0
        assert "progress prefill-0" not in started.output
        assert_nothing_left(run, tmp_path, shared_memory)


def test_a_ray_that_is_late_is_started_once_more(tmp_path: Path, shared_memory: set[str]) -> None:
    with serving(tmp_path, "make_worker", before=unregistered(tmp_path, times=1)) as started:
        started.wait_for("progress ray starting")
        run = the_run(tmp_path)
        (tmp_path / MAY_FAIL).touch()
        started.wait_for("trying once more: The current node timed out")
        started.wait_for("serving")
        assert num_raylets(Path(run.temp_dir)) == 1, "the first is gone"
        assert Path(run.temp_dir).stat().st_mode & 0o077 == 0
        started.process.send_signal(signal.SIGTERM)
        assert started.end() == 0
        assert_nothing_left(run, tmp_path, shared_memory)


def test_a_ray_that_is_late_twice_is_told_in_one_line_and_leaves_nothing(
    tmp_path: Path, shared_memory: set[str]
) -> None:
    with serving(tmp_path, "make_worker", before=unregistered(tmp_path, times=2)) as started:
        started.wait_for("progress ray starting")
        run = the_run(tmp_path)
        (tmp_path / MAY_FAIL).touch()
        assert started.end() == 1
        assert "Traceback" not in started.output
        (told,) = (line for line in started.lines if "refused: " in line)
        assert "timed out during startup. It could happen. Try again" in told
        assert "`ray start --head`" in told
        assert_nothing_left(run, tmp_path, shared_memory)


def unregistered(root: Path, *, times: int) -> str:
    return UNREGISTERED.format(times=times, may_fail=str(root / MAY_FAIL))


def num_raylets(temp_dir: Path) -> int:
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in litter.processes_of(temp_dir)]
    return sum(command.split(b"\0")[0].endswith(b"/raylet") for command in commands)


def test_a_start_that_is_refused_names_the_reason_and_leaves_nothing(
    tmp_path: Path, shared_memory: set[str]
) -> None:
    with serving(tmp_path, "make_awaited_refusal") as started:
        started.wait_for("placing")
        run = the_run(tmp_path)
        (tmp_path / MAY_REFUSE).touch()
        assert started.end() == 1
        assert "refused: needs 80 GiB, has 8 GiB" in started.output
        assert_nothing_left(run, tmp_path, shared_memory)


def test_a_process_that_keeps_dying_ends_the_serving(tmp_path: Path) -> None:
    with serving(tmp_path, "make_worker", "cluster.max_restarts=0") as started:
        started.wait_for("serving")
        os.kill(pid_of(the_run(tmp_path), "decode-0"), signal.SIGKILL)
        assert started.end() == 1
        assert "decode-0 cannot be kept alive" in started.output


def test_a_cluster_that_exists_is_joined_and_left_as_it_was(
    ray_session: RaySession, tmp_path: Path
) -> None:
    before = free_resources()
    with serving(tmp_path, "make_worker", f"cluster.ray_address={ray_session.address}") as started:
        started.wait_for("serving")
        run = the_run(tmp_path)
        assert (run.ray_address, run.temp_dir) == (ray_session.address, "")
        started.process.send_signal(signal.SIGTERM)
        assert started.end() == 0
        assert not [process.name for process in run.processes if is_ours(process.pid)]
    # Ray tells of it with a delay.
    deadline = time.monotonic() + DEADLINE_S
    while free_resources() != before:
        assert time.monotonic() < deadline


def free_resources() -> dict[str, float]:
    """What nobody has reserved; the object store's fill is none of our business."""
    resources: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return {name: resources[name] for name in sorted(resources) if name != "object_store_memory"}


def test_an_address_without_a_cluster_is_a_configuration_error(tmp_path: Path) -> None:
    with serving(tmp_path, "make_worker", "cluster.ray_address=127.0.0.1:9") as started:
        assert started.end() == 1
        assert "refused: cluster.ray_address = '127.0.0.1:9'" in started.output
