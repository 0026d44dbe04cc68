"""A real Prometheus for tests: found on PATH, else fetched from Debian."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from debian_packages import cached, unpack

from bench.tandem_server import free_port

CACHE = Path.home() / ".cache" / "tandem" / "test-prometheus"
START_TIMEOUT_S = 60.0


def locate() -> Path:
    """The program. Raises what fetching raises; tests don't go without it."""
    found = shutil.which("prometheus")
    if found is not None:
        return Path(found)
    root = cached(CACHE, "debian", lambda root: unpack("prometheus", root))
    return root / "usr/bin/prometheus"


class Prometheus:
    """One running server."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def until_scraped(self) -> None:
        """Until its only target has been read. One that was late is read again after a while."""
        error = "never tried"
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    for target in (await self.get("/api/v1/targets"))["activeTargets"]:
                        error = target["lastError"]
                        if target["health"] == "up":
                            return
        except TimeoutError:
            raise AssertionError(f"it was not read: {error}") from None

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector it is now. Fails if Prometheus refuses the expression."""
        result: list[dict[str, Any]] = (await self.get("/api/v1/query", query=expression))["result"]
        return result

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        response = await self._http.get(path, params=params)
        answer = response.json()
        assert answer["status"] == "success", (params, answer)
        data: dict[str, Any] = answer["data"]
        return data


@contextlib.asynccontextmanager
async def running(program: Path, directory: Path, config: Path) -> AsyncIterator[Prometheus]:
    """A server for the length of the block, its data under `directory`."""
    address = f"127.0.0.1:{free_port()}"
    log = directory / "prometheus.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str(program),
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={address}",
            stdout=output,
            stderr=output,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=START_TIMEOUT_S) as http:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await _is_ready(http):
                    assert process.returncode is None, log.read_text()
            yield Prometheus(http)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _is_ready(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/-/ready")).status_code == 200
    except httpx.TransportError:
        await asyncio.sleep(0.05)  # nobody listens yet
        return False
