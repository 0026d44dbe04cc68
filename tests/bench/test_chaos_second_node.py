"""The cable between two nodes: real network namespaces, where they are allowed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.chaos.second_node import SecondNode
from bench.client import ServerError

ECHO = """
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
peer, _ = listener.accept()
while data := peer.recv(100):
    peer.sendall(data)
"""
DEADLINE_S = 30.0

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"
)


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[SecondNode]:
    node = SecondNode()
    try:
        try:
            await node.open()
        except ServerError as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield node
    finally:
        await node.close()


@contextlib.asynccontextmanager
async def echo_server(node: SecondNode) -> AsyncIterator[tuple[int, int]]:
    """Port and pid of a process on the other node that says what it hears."""
    words = node.command((sys.executable, "-c", ECHO, node.far_address))
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline()), process.pid
    finally:
        process.kill()
        await process.wait()


def test_a_cut_is_silent_and_what_was_sent_meanwhile_arrives_after_it() -> None:
    async def test() -> None:
        async with opened() as node, echo_server(node) as (port, _):
            reader, writer = await asyncio.open_connection(node.far_address, port)
            writer.write(b"one")
            async with asyncio.timeout(DEADLINE_S):
                assert await reader.readexactly(3) == b"one"
            await node.cut()
            writer.write(b"two")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await reader.readexactly(3)
            await node.heal()
            async with asyncio.timeout(DEADLINE_S):
                assert await reader.readexactly(3) == b"two"
            writer.close()
            await writer.wait_closed()

    asyncio.run(test())


def test_a_process_over_there_is_the_command_itself() -> None:
    """So that a signal to it hits what it is meant for."""

    async def test() -> None:
        async with opened() as node, echo_server(node) as (_, pid):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            assert words[0] == sys.executable and "netns" not in words

    asyncio.run(test())


def test_nothing_of_it_is_left() -> None:
    async def test() -> SecondNode:
        async with opened() as node:
            pass
        await node.close()
        return node

    node = asyncio.run(test())
    assert not list(Path("/sys/class/net").glob(f"{node._bridge}*"))
    assert not Path(f"/var/run/netns/{node._namespace}").exists()
