"""The bytes of a file, or those of one range (RFC 9110, section 14), out of a file that is open.

A file that is deleted meanwhile is still read to its end.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from typing import BinaryIO

from fastapi import Response
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from core.errors import BadRequestError
from router.http.errors import error_response
from router.http.reply import SEND_TIMEOUT_S, WatchedSend, until_disconnect

CHUNK_BYTES = 64 * 1024
_RANGE = re.compile(r"([0-9]{0,18})-([0-9]{0,18})")


class RangeNotSatisfiableError(BadRequestError):
    """The file ends before the range begins."""

    code = "range_not_satisfiable"
    http_status = 416


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes from `begin` until before `end`."""

    begin: int
    end: int


def span_of(text: str, size: int) -> Span | None:
    """What a `Range` header asks of so many bytes; None: all, as for several ranges at once.

    Raises BadRequestError for what is no range of bytes, RangeNotSatisfiableError.
    """
    unit, _, listed = text.partition("=")
    spans = [_span(each.strip(), size) for each in listed.split(",")]
    if unit.strip().lower() != "bytes" or None in spans:
        raise BadRequestError("'range' must be bytes=FIRST-LAST, FIRST- or -LENGTH", param="range")
    if len(spans) > 1:
        return None
    [span] = spans
    if span is not None and span.begin >= span.end:
        raise RangeNotSatisfiableError(f"the file has {size} bytes", param="range")
    return span


def _span(text: str, size: int) -> Span | None:
    """Empty if none of it is there; None: it is no range."""
    found = _RANGE.fullmatch(text)
    if found is None or text == "-":
        return None
    first, last = found.groups()
    if not first:
        return Span(max(0, size - int(last)), size)
    if not last:
        return Span(int(first), size)
    return Span(int(first), min(size, int(last) + 1)) if int(first) <= int(last) else None


def file_reply(file: BinaryIO, etag: str, asked: Headers) -> Response:
    """The answer to a request with these headers; it closes the file. `etag` is in quotes."""
    size = os.fstat(file.fileno()).st_size
    span = None
    if "range" in asked and asked.get("if-range", etag) == etag:
        try:
            span = span_of(asked["range"], size)
        except BadRequestError as error:
            file.close()
            is_outside = isinstance(error, RangeNotSatisfiableError)
            return error_response(error, {"content-range": f"bytes */{size}"} if is_outside else {})
    return _FileReply(file, etag, span, size)


class _FileReply(Response):
    """Its client is given up when it goes, or reads no more."""

    def __init__(self, file: BinaryIO, etag: str, span: Span | None, size: int) -> None:
        self._file = file
        self._span = span or Span(0, size)
        headers = {
            "accept-ranges": "bytes",
            "content-length": str(self._span.end - self._span.begin),
            "etag": etag,
        }
        if span is not None:
            headers["content-range"] = f"bytes {span.begin}-{span.end - 1}/{size}"
        super().__init__(
            status_code=200 if span is None else 206,
            headers=headers,
            media_type="application/octet-stream",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watched = WatchedSend(send)
        with self._file:
            await until_disconnect(receive, self._sent(watched), watched.stalled(SEND_TIMEOUT_S))

    async def _sent(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send(start | {"headers": self.raw_headers})
        place, end = self._span.begin, self._span.end
        while place < end:
            size = min(CHUNK_BYTES, end - place)
            piece = await asyncio.to_thread(os.pread, self._file.fileno(), size, place)
            assert piece, "files here never shrink"
            place += len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": place < end})
        if self._span.begin == end:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
