"""Silence is measured while we listen: who stood still itself reads first what came meanwhile."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from core.silence import Silence

LONG_S = 60.0
SHORT_S = 0.05


def test_a_peer_that_says_nothing_is_given_up_at_its_limit() -> None:
    async def run() -> float:
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            async with Silence(0.01):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(run()) >= 0.01


def test_what_came_while_we_stood_still_is_heard_before_the_peer_is_given_up() -> None:
    """As after a SIGSTOP: the timer is long due, and the word lies unread in the socket."""

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)

        def stand_still() -> None:
            theirs.send(b"x")
            until = time.monotonic() + 2 * SHORT_S
            while time.monotonic() < until:
                pass
            # When the silence that was is looked at for the second time, and is none
            loop.call_later(SHORT_S, theirs.send, b"y")

        with ours, theirs:
            async with Silence(SHORT_S) as peer:
                loop.call_soon(stand_still)
                words = await loop.sock_recv(ours, 1)
                peer.heard(LONG_S)
                return words + await loop.sock_recv(ours, 1)

    assert asyncio.run(run()) == b"xy"


def test_a_new_limit_counts_from_the_word_that_brought_it() -> None:
    async def run() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with Silence(LONG_S) as peer:
                peer.heard(0.01)
                await asyncio.Event().wait()
        return loop.time() - began

    assert 0.01 <= asyncio.run(run()) < LONG_S


def test_every_word_prolongs_it() -> None:
    async def run() -> bool:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with Silence(SHORT_S) as peer:
            while loop.time() - began < 3 * SHORT_S:
                await asyncio.sleep(0)
                peer.heard()
        return True

    assert asyncio.run(run())


def test_a_block_that_is_cancelled_from_outside_is_cancelled() -> None:
    async def run() -> bool:
        async def listen() -> None:
            async with Silence(LONG_S):
                await asyncio.Event().wait()

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0)
        listening.cancel()
        await asyncio.wait({listening})
        return listening.cancelled()

    assert asyncio.run(run())
