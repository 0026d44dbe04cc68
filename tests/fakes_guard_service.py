"""An outside guard service: a real HTTP server that says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeService:
    """Answers each POST with what `answer` makes of its body; None: it never does."""

    answer: Callable[[dict[str, Any]], bytes | None]
    asked: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    status: bytes = b"200 OK"
    _at_once: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(size))
                self.asked.append(body)
                self._at_once += 1
                self.most_at_once = max(self.most_at_once, self._at_once)
                answer = self.answer(body)
                if answer is None:
                    await reader.read()
                    return
                await asyncio.sleep(0)
                self._at_once -= 1
                length = str(len(answer)).encode()
                writer.write(b"HTTP/1.1 %b\r\ncontent-length: %b\r\n\r\n" % (self.status, length))
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def serving(fake: FakeService) -> AsyncIterator[str]:
    server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/check"
    finally:
        server.close()
        await server.wait_closed()


def saying(**answer: Any) -> Callable[[dict[str, Any]], bytes | None]:
    return lambda _: json.dumps(answer).encode()
