"""The socket that HTTP is served on."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

import pytest
from fakes_pull import DEADLINE_S
from fastapi import FastAPI

from core.errors import ConfigError
from router.http import server
from router.http.server import HttpServer, listen
from router.http.slow_clients import Patience


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


@dataclass
class FakeExchange:
    response_complete: bool = False


@dataclass(eq=False)
class FakeConnection:
    """Its own transport, too."""

    cycle: FakeExchange | None = None
    closing: bool = False

    @property
    def transport(self) -> FakeConnection:
        return self

    def is_closing(self) -> bool:
        return self.closing


def test_a_connection_may_wait_between_requests_and_be_answered_for_ever() -> None:
    patience = Patience[FakeConnection](10.0)
    silent, served = FakeConnection(), FakeConnection(FakeExchange())
    busy, stuck = FakeConnection(FakeExchange(True)), FakeConnection(FakeExchange(), closing=True)
    everybody = [silent, served, busy, stuck]
    assert patience.overdue(everybody, 100.0) == []
    assert patience.overdue(everybody, 109.0) == []
    busy.cycle = FakeExchange(True)  # another request, answered between two looks
    assert patience.overdue(everybody, 110.0) == [silent, stuck]
    served.cycle = FakeExchange(True)
    assert patience.overdue([served, busy], 119.0) == []
    assert patience.overdue([served, busy], 120.0) == [busy]
    assert patience.overdue([served], 129.0) == [served]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTT",
        b"GET /health HTTP/1.1\r\nhost: x\r\nx-slow: ",
        b"GET /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\nabc",
        b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\nGET /noth",
    ],
)
def test_who_sends_no_whole_request_is_sent_away(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a byte more, which ends the server's own patience between two requests."""
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)

    async def run() -> bytes:
        http = HttpServer(FastAPI(), host="127.0.0.1", port=0)
        reader, writer = await asyncio.open_connection("127.0.0.1", await http.start(timeout_s=30))
        writer.write(sent)
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        await http.stop()
        return answer

    answer = asyncio.run(run())
    assert answer.startswith(b"HTTP/1.1 404 ") if b"/nothing" in sent else answer == b""
