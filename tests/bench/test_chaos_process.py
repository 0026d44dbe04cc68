"""Processes that faults are done to, as they really end."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from bench.chaos.process import (
    ManagedProcess,
    Program,
    command_of,
    end_session,
    identity_of,
    send_signal,
    session_members,
)
from bench.chaos.worker_group import has_ended_within, other_ranks, signal_rank
from bench.client import ServerError

DEADLINE_S = 60.0
SERVES = "import signal; print('x ready: 127.0.0.1:7', flush=True); signal.pause()"
LEAVES_A_CHILD = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("x ready: 127.0.0.1:7", flush=True)
signal.pause()
"""
FAULTY = """
print("WARNING core.faults: fault: kv_send #3: delay 0 s, corrupt")
print("WARNING core.faults: fault: kv_send #4: delay 0.3 s, None")
print("x ready: 127.0.0.1:7", flush=True)
"""


def program(code: str) -> Program:
    return Program("x", (sys.executable, "-u", "-c", code), "x ready:")


def test_a_process_is_ready_when_it_says_so_and_ends_when_told(tmp_path: Path) -> None:
    async def test() -> None:
        live = await ManagedProcess.start(program(SERVES), tmp_path / "x.log")
        await live.until_ready(DEADLINE_S)
        assert live.address == "127.0.0.1:7"
        identity = identity_of(live.pid)
        assert identity is not None and identity.lives()
        live.signal(signal.SIGSTOP)
        assert await live.terminate(DEADLINE_S) == []
        assert live.has_ended and not identity.lives()

    asyncio.run(test())
    assert (tmp_path / "x.log").read_text() == "x ready: 127.0.0.1:7\n"


def test_what_a_process_leaves_behind_is_named_and_killed(tmp_path: Path) -> None:
    async def test() -> None:
        live = await ManagedProcess.start(program(LEAVES_A_CHILD), tmp_path / "x.log")
        await live.until_ready(DEADLINE_S)
        (left,) = await live.terminate(DEADLINE_S)
        assert left.startswith("process ") and left.endswith(" of x")
        while session_members(live.pid):
            await asyncio.sleep(0)

    asyncio.run(test())


def test_one_that_has_ended_by_itself_is_not_reproached_with_what_it_left(tmp_path: Path) -> None:
    """A group gives itself up: its end was its own, and is judged as a crash or not."""

    async def test() -> None:
        live = await ManagedProcess.start(program(LEAVES_A_CHILD), tmp_path / "x.log")
        await live.until_ready(DEADLINE_S)
        send_signal(live.pid, signal.SIGTERM)
        await live.until_ended()
        assert len(live.left) == 1
        assert await live.terminate(DEADLINE_S) == []

    asyncio.run(test())


def test_a_process_is_found_by_what_it_runs(tmp_path: Path) -> None:
    async def test() -> None:
        live = await ManagedProcess.start(program(LEAVES_A_CHILD), tmp_path / "x.log")
        await live.until_ready(DEADLINE_S)
        members = session_members(live.pid)
        assert [pid for pid in members if "subprocess" in command_of(pid)] == [live.pid]
        assert len(members) == 2
        await live.kill()
        assert command_of(live.pid) == ""

    asyncio.run(test())


def test_one_that_ends_before_it_is_ready_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    async def test() -> None:
        live = await ManagedProcess.start(program("print('no model')"), tmp_path / "x.log")
        with pytest.raises(ServerError, match="no model"):
            await live.until_ready(DEADLINE_S)
        assert await live.until_ended() == 0
        assert end_session(live.pid) == []

    asyncio.run(test())


def test_faults_that_a_process_did_to_itself_are_counted(tmp_path: Path) -> None:
    async def test() -> None:
        live = await ManagedProcess.start(program(FAULTY), tmp_path / "x.log")
        await live.until_ready(DEADLINE_S)
        await live.until_ended()
        assert live.faults == {"kv_send corrupt": 1, "kv_send delay": 1}

    asyncio.run(test())


GROUP = """
import signal, subprocess, sys
rank = "import signal; print(flush=True); signal.pause()  # cluster." + "rank_process"
child = subprocess.Popen([sys.executable, "-c", rank], stdout=subprocess.PIPE)
child.stdout.readline()  # now it is known by its command line, too
print("x ready: 127.0.0.1:7", flush=True)
child.wait()
"""


def test_a_group_ends_when_its_last_rank_is_hit(tmp_path: Path) -> None:
    async def test() -> None:
        leader = await ManagedProcess.start(program(GROUP), tmp_path / "x.log")
        await leader.until_ready(DEADLINE_S)
        assert not await has_ended_within(leader, 0.0)
        (rank,) = other_ranks(leader)
        assert rank != leader.pid
        signal_rank(leader, signal.SIGKILL)
        assert await has_ended_within(leader, DEADLINE_S)
        assert other_ranks(leader) == []

    asyncio.run(test())
