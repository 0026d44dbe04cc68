"""The socket that HTTP is served on."""

from __future__ import annotations

import asyncio
import socket

import pytest
from fastapi import FastAPI

from core.errors import ConfigError
from router.http.server import HttpServer, listen


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_answers_leave_at_once_instead_of_waiting_for_an_acknowledgement(host: str) -> None:
    async def run() -> int:
        delay: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted: socket.socket = writer.get_extra_info("socket")
            delay.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listen(host, 0)
        async with await asyncio.start_server(on_client, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            async with asyncio.timeout(30):
                result = await delay
            writer.close()
            return result

    assert asyncio.run(run()) != 0


def test_a_taken_port_is_a_configuration_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot serve HTTP on 127.0.0.1:{port}"):
            listen("127.0.0.1", port)


def test_a_stop_that_is_cancelled_can_be_repeated() -> None:
    async def run() -> None:
        server = HttpServer(FastAPI(), host="127.0.0.1", port=0)
        port = await server.start(timeout_s=30)
        hurried = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        hurried.cancel()
        await asyncio.wait({hurried})
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(run())
