"""A multipart upload, written to the disk as it comes: memory holds one buffer of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from core.errors import BadRequestError, DeadlineError
from router.http.body import BodyTooLargeError, UnsupportedMediaTypeError

BUFFER_BYTES = 1 << 20
MAX_FIELD_BYTES = 4096
MAX_FIELDS = 16
MAX_HEADER_BYTES = 8192
MAX_FILENAME_LENGTH = 255
OVERHEAD_BYTES = 64 * 1024
"""All fields but the file, and what is between them."""
PIECE_TIMEOUT_S = 30.0
MIN_BYTES_PER_S = 4096
"""On average: few may upload at once, and a slower client would keep others out for days."""


@dataclass(slots=True)
class Upload:
    """What the client sent beside the file's bytes."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    """None: no file came."""
    num_bytes: int = 0


async def read_upload(
    pieces: AsyncIterator[bytes], content_type: str, path: Path, *, max_bytes: int
) -> Upload:
    """Writes the part named `file` to `path`.

    Raises BadRequestError, UnsupportedMediaTypeError, BodyTooLargeError, and DeadlineError for a
    client that stalls.
    """
    media_type, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if media_type != b"multipart/form-data" or not boundary:
        raise UnsupportedMediaTypeError("an upload's content type must be multipart/form-data")
    reader = _Reader(max_bytes)
    try:
        parser = MultipartParser(boundary, reader.callbacks())  # type: ignore[arg-type]
        with path.open("xb") as file:
            async for piece in _timely(pieces):
                reader.count(len(piece))
                parser.write(piece)
                if len(reader.pending) >= BUFFER_BYTES:
                    await asyncio.to_thread(file.write, reader.take())
            await asyncio.to_thread(file.write, reader.take())
        parser.finalize()
    except (FormParserError, UnicodeDecodeError) as error:
        raise BadRequestError(f"the form can't be read: {error}") from None
    if not reader.is_complete:
        raise BadRequestError("the form ends before its last boundary")
    return reader.upload


async def _timely(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    now = asyncio.get_running_loop().time
    allowed_until = now() + PIECE_TIMEOUT_S
    while True:
        try:
            async with asyncio.timeout(PIECE_TIMEOUT_S):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise DeadlineError(f"nothing of the upload came for {PIECE_TIMEOUT_S:g} s") from None
        if piece is None:
            return
        allowed_until += len(piece) / MIN_BYTES_PER_S
        if now() > allowed_until:
            raise DeadlineError(f"the upload is slower than {MIN_BYTES_PER_S} bytes a second")
        yield piece


class _Reader:
    """What the parser calls, and what it has found."""

    def __init__(self, max_bytes: int) -> None:
        self.upload = Upload()
        self.pending = bytearray()
        """Of the file, not written yet."""
        self.is_complete = False
        self._max_bytes = max_bytes
        self._num_read = 0
        self._num_header_bytes = 0
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._disposition = b""
        self._name: str | None = None
        self._value = bytearray()
        self._is_file = False

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value_data,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def count(self, num_bytes: int) -> None:
        self._num_read += num_bytes
        if self._num_read > self._max_bytes + OVERHEAD_BYTES:
            raise too_large(self._max_bytes)

    def take(self) -> bytes:
        taken = bytes(self.pending)
        self.pending.clear()
        return taken

    def _part_begin(self) -> None:
        if len(self.upload.fields) >= MAX_FIELDS:
            raise BadRequestError(f"the form has more than {MAX_FIELDS} fields")
        self._num_header_bytes = 0
        self._disposition = b""
        self._name, self._is_file = None, False
        self._value.clear()
        self._header_name.clear()
        self._header_value.clear()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header_name += data[start:end]

    def _header_value_data(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._header_value += data[start:end]

    def _count_header(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > MAX_HEADER_BYTES:
            raise BadRequestError("a part's headers are too long")

    def _header_end(self) -> None:
        if bytes(self._header_name).lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if name is None:
            raise BadRequestError("a part of the form has no name")
        self._name = name.decode()
        self._is_file = self._name == "file"
        if self._name in self.upload.fields or (self._is_file and self.upload.filename is not None):
            raise BadRequestError("a field is given twice", param=self._name[:64])
        if self._is_file:
            given = options.get(b"filename", b"").decode()
            self.upload.filename = harmless_name(given)

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._value += data[start:end]
            if len(self._value) > MAX_FIELD_BYTES:
                raise BadRequestError("a field of the form is too long", param=self._name)
            return
        self.upload.num_bytes += end - start
        if self.upload.num_bytes > self._max_bytes:
            raise too_large(self._max_bytes)
        self.pending += data[start:end]

    def _part_end(self) -> None:
        if not self._is_file and self._name is not None:
            self.upload.fields[self._name] = self._value.decode()

    def _end(self) -> None:
        self.is_complete = True


def too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the file is larger than {max_bytes} bytes")


def harmless_name(given: str) -> str:
    """A client's name for its file: shown again, never a path of ours."""
    printable = "".join(c for c in given if c.isprintable()).strip()
    return printable[-MAX_FILENAME_LENGTH:] or "upload.jsonl"
