"""A second node on this machine: a network namespace behind a cable that can be cut.

    this node  [bridge, near address] -- veth ===== veth [far address]  the other node
                                     cut here: no carrier is lost, packets just go nowhere

A cut cable inside a network tells nobody: that is why the end at the bridge is pulled, and no
interface is set down, which would answer at once. Needs root and Debian's iproute2.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, STDOUT

from bench.client import ServerError

_TIMEOUT_S = 10.0


class SecondNode:
    """`open` before processes are started there, `close` after they have ended."""

    def __init__(self) -> None:
        mark = os.getpid() % 10_000
        self._namespace = f"tandem-chaos-{mark}"
        self._bridge, self._near_end, self._far_end = f"tcb{mark}", f"tcn{mark}", f"tcf{mark}"
        # Link-local addresses, four of them, which no route leads to elsewhere.
        subnet = f"169.254.{1 + mark % 160}"
        self.near_address, self.far_address = f"{subnet}.1", f"{subnet}.2"

    def command(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """What runs this command on the other node; the process is the command's own."""
        return ("ip", "netns", "exec", self._namespace, *words)

    async def open(self) -> None:
        """Lays the cable. Raises ServerError where that is not allowed."""
        inside = ("-n", self._namespace)
        await _ip("netns", "add", self._namespace)
        await _ip("link", "add", self._bridge, "type", "bridge")
        ends = (self._near_end, "type", "veth", "peer", "name", self._far_end)
        await _ip("link", "add", *ends, "netns", self._namespace)
        await _ip("addr", "add", f"{self.near_address}/30", "dev", self._bridge)
        await _ip(*inside, "addr", "add", f"{self.far_address}/30", "dev", self._far_end)
        await _ip(*inside, "link", "set", "lo", "up")
        await _ip(*inside, "link", "set", self._far_end, "up")
        await _ip("link", "set", self._bridge, "up")
        await _ip("link", "set", self._near_end, "up")
        await self.heal()

    async def cut(self) -> None:
        """From now on nothing arrives on either side."""
        await _ip("link", "set", self._near_end, "nomaster")

    async def heal(self) -> None:
        """As before the cut; what was sent meanwhile is lost."""
        await _ip("link", "set", self._near_end, "master", self._bridge)

    async def cut_for(self, seconds: float) -> None:
        """Cuts and heals."""
        await self.cut()
        try:
            await asyncio.sleep(seconds)
        finally:
            await self.heal()

    async def close(self) -> None:
        """Takes away what there is of it."""
        for words in (("link", "del", self._bridge), ("netns", "del", self._namespace)):
            try:
                await _ip(*words)
            except ServerError:
                continue  # it was never made


async def _ip(*words: str) -> None:
    process = await asyncio.create_subprocess_exec("ip", *words, stdout=PIPE, stderr=STDOUT)
    async with asyncio.timeout(_TIMEOUT_S):
        said, _ = await process.communicate()
    if process.returncode:
        raise ServerError(f"ip {' '.join(words)}: {said.decode(errors='replace').strip()}")
