"""Signals end a process in time, whatever it is doing. Each test runs a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.signals import EXIT_OVERDUE

DEADLINE_S = 30.0

HEAD = """
import asyncio, os, sys, time, ctypes
from cluster.signals import StopSignals

def say(text):
    print(text, flush=True)

async def main(grace_s, words=None):
    with StopSignals(grace_s, words) as signals:
"""
TAIL = "\nasyncio.run(main(*ARGUMENTS))\n"


@contextmanager
def process(body: str, arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has said `ready`."""
    indented = "\n".join(f"        {line}" for line in body.strip().splitlines())
    code = HEAD + indented + TAIL.replace("ARGUMENTS", arguments)
    # Unbuffered: `communicate` doesn't see what a first `readline` has read ahead
    started = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, bufsize=0)
    assert started.stdout is not None
    try:
        assert started.stdout.readline() == b"ready\n"
        yield started
    finally:
        started.kill()
        started.wait(timeout=DEADLINE_S)
        started.stdout.close()


def rest(started: subprocess.Popen[bytes]) -> tuple[int, str]:
    output, _ = started.communicate(timeout=DEADLINE_S)
    return started.returncode, output.decode()


def test_the_first_signal_asks_and_the_process_ends_by_itself() -> None:
    body = "say('ready')\nawait signals.requested.wait()\nsay('drained')"
    for number in (signal.SIGTERM, signal.SIGINT):
        with process(body, "(60.0,)") as started:
            started.send_signal(number)
            assert rest(started) == (0, "drained\n")


def test_a_second_signal_hurries() -> None:
    body = """
say('ready')
await signals.requested.wait()
assert not signals.hurry.is_set()
say('draining')
await signals.hurry.wait()
say('hurried')
"""
    with process(body, "(60.0,)") as started:
        started.send_signal(signal.SIGTERM)
        assert started.stdout is not None
        assert started.stdout.readline() == b"draining\n"
        started.send_signal(signal.SIGINT)
        assert rest(started) == (0, "hurried\n")


def test_a_loop_that_never_turns_again_is_ended_with_last_words() -> None:
    body = "say('ready')\nwhile True: pass"
    with process(body, "(0.3, lambda: say('bye'))") as started:
        started.send_signal(signal.SIGTERM)
        assert rest(started) == (EXIT_OVERDUE, "bye\n")


def test_a_native_call_that_never_returns_is_ended() -> None:
    # pause() returns only for a signal, and this thread restarts it: Python's handlers never run.
    body = """
libc = ctypes.CDLL(None)
libc.siginterrupt(15, 0)
say('ready')
read, write = os.pipe()
buffer = ctypes.create_string_buffer(1)
while True:
    libc.read(read, buffer, 1)
"""
    with process(body, "(0.3,)") as started:
        started.send_signal(signal.SIGTERM)
        assert rest(started)[0] == EXIT_OVERDUE


def test_a_stop_of_its_own_has_the_same_deadline() -> None:
    body = "say('ready')\nsignals.arm()\nawait asyncio.Event().wait()"
    with process(body, "(0.3,)") as started:
        assert rest(started)[0] == EXIT_OVERDUE


def test_a_thread_that_outlives_the_block_does_not_outlive_the_grace() -> None:
    body = """
say('ready')
import threading
asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
say('leaving')
signals.arm()
"""
    with process(body, "(0.5,)") as started:
        assert rest(started) == (EXIT_OVERDUE, "leaving\n")


def test_a_signal_after_the_loop_has_ended_keeps_the_grace() -> None:
    body = """
import atexit
atexit.register(lambda: (signals.arm(), time.sleep(30)))
signals.arm()
await signals.requested.wait()
say('ready')
"""
    with process(body, "(0.3,)") as started:
        assert rest(started) == (EXIT_OVERDUE, "")


def test_handlers_are_put_back_afterwards() -> None:
    body = """
say('ready')
signals.__exit__(None, None, None)
import signal
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
say('restored')
os._exit(0)
"""
    with process(body, "(60.0,)") as started:
        assert rest(started) == (0, "restored\n")
