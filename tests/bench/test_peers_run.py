"""A whole run against real processes that serve: the scripted OpenAI server."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import fakes_openai_server
import pytest

from bench.peers.contenders import Contender, Launch, Setting
from bench.peers.memory import process_memory, tree, tree_memory
from bench.peers.places import ModelFiles, Places
from bench.peers.quiet import busy_between, read_times
from bench.peers.results import Measurement, Results
from bench.peers.run import PeersPlan, PeersRun
from bench.peers.server import running
from bench.peers.workloads import Arrival, ClosedLoop, Demand, Start, Workload
from bench.runner import LoopTimer
from core.clock import MonotonicClock

PROGRAM = (sys.executable, str(Path(fakes_openai_server.__file__)))
WORKLOADS: tuple[Workload, ...] = (
    Start(),
    ClosedLoop("load", 2, 4, input_len=16, output_len=3),
    ClosedLoop("prefill", 1, 2, input_len=64, output_len=1),
    Arrival("arrival", 64, num_streams=2, stream_input_len=16, quiet_s=0.1),
)


def port_and_period(port: int) -> list[str]:
    return [str(port), "0.002"]


def fake(name: str, **more: object) -> Contender:
    """A server of one token per two milliseconds."""

    def launch(setting: Setting, demand: Demand) -> Launch:
        return Launch(PROGRAM, port_arguments=port_and_period)

    return Contender(name, launch, kept=bool(more.get("kept")))


def broken(name: str) -> Contender:
    def launch(setting: Setting, demand: Demand) -> Launch:
        text = "print('no such model'); raise SystemExit(2)"
        return Launch((sys.executable, "-c", text), port_arguments=lambda port: [])

    return Contender(name, launch)


def measure(
    directory: Path, contenders: tuple[Contender, ...], repeats: int
) -> tuple[PeersRun, Results, list[str]]:
    setting = Setting(Places(directory), ModelFiles(directory), "default", 2)
    results = Results.begin(directory, {}, resume=(directory / "measurements.jsonl").exists())
    plan = PeersPlan(contenders, WORKLOADS, setting, directory / "logs", repeats)
    steps: list[str] = []
    run = PeersRun(plan, results, LoopTimer(MonotonicClock()), steps.append)
    before = set(tree(os.getpid()))
    asyncio.run(run.run())
    started = set(tree(os.getpid())) - before
    assert not [pid for pid in started if process_memory(pid)], "a server is left"
    return run, results, steps


def test_contenders_are_measured_in_turn_and_one_that_fails_is_left_out(tmp_path: Path) -> None:
    contenders = (fake("one"), broken("bad"), fake("two", kept=True))
    run, results, steps = measure(tmp_path, contenders, repeats=2)
    assert "no such model" in run.left_out["bad"]
    assert [step for step in steps if step.startswith("starting")] == [
        *("starting one", "starting bad", "starting two", "starting one")
    ]
    assert not [m for m in results.measurements if m.problem is not None]
    made = {m.key: m for m in results.measurements}
    assert ("two", "start", 0) in made and ("two", "start", 1) not in made, "it was only paused"
    load = made["one", "load", 1]
    assert load.figures["output_tokens_per_s"] > 0 and load.figures["tpot_ms"] > 0
    assert made["one", "prefill", 0].figures["prompt_tokens_per_s"] > 0
    assert made["two", "arrival", 1].figures["worst_gap_over_own_median"] > 0
    memory = made["one", "memory", 0]
    assert memory.figures["total_mib"] == pytest.approx(sum(memory.processes_mib.values()))
    assert memory.figures["start_mib"] == pytest.approx(sum(memory.start_processes_mib.values()))
    assert set(memory.start_processes_mib) == set(memory.processes_mib), "of one server"
    assert "start_mib" in made["two", "memory", 0].figures
    assert "start_mib" not in made["two", "memory", 1].figures, "it was only paused"
    assert made["two", "memory", 1].figures["total_mib"] > 1

    measured = len(results.measurements)
    _, again, steps = measure(tmp_path, (fake("one"),), repeats=2)
    assert not steps and len(again.measurements) == measured, "nothing was lacking"


def test_a_paused_server_uses_no_core_and_goes_on_afterwards(tmp_path: Path) -> None:
    async def run() -> tuple[str, str]:
        timer = LoopTimer(MonotonicClock())
        async with running(
            [sys.executable, "-c", "while True: pass"], tmp_path / "log", timer
        ) as it:
            it.pause()
            paused = await state(it.pid, "T")
            it.resume()
            return paused, await state(it.pid, "R")

    async def state(pid: int, wanted: str) -> str:
        """The process's state (proc(5)), once it is the wanted one."""
        async with asyncio.timeout(20):
            while (seen := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][1]) != wanted:
                await asyncio.sleep(0)
        return seen

    assert asyncio.run(run()) == ("T", "R")


def test_memory_is_that_of_a_process_and_of_all_below_it() -> None:
    me = process_memory(os.getpid())
    assert me is not None and me.pss_mib > 1
    assert os.getpid() in [process.pid for process in tree_memory(os.getppid())]
    assert process_memory(2**22 + 1) is None


def test_the_busy_share_counts_what_is_neither_idle_nor_waiting() -> None:
    before = read_times("cpu 10 0 10 70 10 0 0 0 5 0\ncpu0 1 1")
    after = read_times("cpu 20 0 20 130 30 0 0 0 9 0\n")
    assert busy_between(before, after) == pytest.approx(0.2)
    assert busy_between(after, after) == 0.0


def test_a_measurement_is_known_by_who_what_and_when() -> None:
    assert Measurement("one", "load", 3).key == ("one", "load", 3)
