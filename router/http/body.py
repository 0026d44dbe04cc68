"""From the bytes of a request to a checked body, or a 400 or 413 that names what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from core.errors import BadRequestError, DeadlineError
from router.http.schema import NEUTRAL

B = TypeVar("B", bound=BaseModel)


class BodyTooLargeError(BadRequestError):
    """The body is larger than the operator allows."""

    code = "body_too_large"
    http_status = 413


class UnsupportedMediaTypeError(BadRequestError):
    """The body says that it is something else than JSON."""

    code = "unsupported_content_type"
    http_status = 415


BODY_TIMEOUT_S = 30.0
"""For a client to send its body: enough for the largest one on a slow line."""

SHAPES = {
    "content": "a string or a list of text parts",
    "input": "a string or a list of items",
    "prompt": "a string, a list of strings, token ids, or lists of token ids",
    "stop": "a string or a list of strings",
}
"""What fields that allow several types may be: the validator would name only one of them."""


async def read_body(request: Request, kind: type[B], *, max_body_bytes: int) -> B:
    """The validated body.

    Raises BadRequestError with the offending field as `param`, DeadlineError for a slow client.
    """
    _check_media_type(request.headers.get("content-type", ""))
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            data = await _read(request, max_body_bytes)
    except TimeoutError:
        raise DeadlineError(f"the body was not sent within {BODY_TIMEOUT_S:g} s") from None
    return checked_body(data, kind)


def checked_body(data: bytes, kind: type[B]) -> B:
    """Raises BadRequestError with the offending field as `param`."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise _explained(error, data) from None
    except RecursionError:
        raise BadRequestError("the body is nested too deeply") from None


async def _read(request: Request, max_body_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_body_bytes:
        raise _too_large(max_body_bytes)
    pieces, size_bytes = [], 0
    async for piece in request.stream():
        size_bytes += len(piece)
        if size_bytes > max_body_bytes:
            raise _too_large(max_body_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def _check_media_type(content_type: str) -> None:
    """A body that says it is no JSON is refused, though it may look like some.

    Browsers send forms and plain text to any address without asking first; JSON they don't.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in ("", "application/json"):
        raise UnsupportedMediaTypeError(
            f"the content type is {media_type[:64]!r}, but must be application/json"
        )


def _too_large(max_body_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the body is larger than {max_body_bytes} bytes")


def _explained(error: ValidationError, data: bytes) -> BadRequestError:
    """The first fault, in a sentence that names its field."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    kind, location = fault["type"], fault["loc"]
    said = fault["msg"].removeprefix("Value error, ")
    if kind == "json_invalid":
        return BadRequestError(f"the body is not valid JSON: {said}", code="invalid_json")
    if not location:
        return BadRequestError(f"the body must be a JSON object: {said}")
    param = field_of(location, from_json(data))
    if kind == "extra_forbidden":
        known = len(location) == 1 and str(location[0]) in NEUTRAL
        what = "is not supported" if known else "is not a known field"
        code = "unsupported_parameter" if known else "unknown_parameter"
        return BadRequestError(f"'{param}' {what}", param=param, code=code)
    if kind == "missing":
        return BadRequestError(
            f"'{param}' is required", param=param, code="missing_required_parameter"
        )
    shape = SHAPES.get(param.rpartition(".")[2]) if kind.endswith("_type") else None
    what = f"'{param}' must be {shape}" if shape else f"'{param}': {said}"
    return BadRequestError(what, param=param, code="invalid_type")


DEPTHS = {"messages": 3, "stream_options": 2, "input": 3, "text": 3, "tools": 3, "reasoning": 2}
"""How much of a place within these fields a client is told; of others, the field alone."""


def field_of(location: Sequence[int | str], value: Any) -> str:
    """`messages.0.content`; without the alternatives of a union, which no client knows.

    They are the parts of the location that don't lie on the way through the body itself.
    """
    path = []
    for place, part in enumerate(location):
        if _holds(value, part):
            value = value[part]
        elif place and not (place == len(location) - 1 and isinstance(value, dict)):
            continue
        path.append(str(part)[:64])
    return ".".join(path[: DEPTHS.get(path[0], 1)])


def _holds(value: object, part: int | str) -> bool:
    if isinstance(part, int):
        return isinstance(value, list) and part < len(value)
    return isinstance(value, dict) and part in value
