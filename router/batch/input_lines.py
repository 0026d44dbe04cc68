"""The lines of an input file, and what makes a whole file unfit (pure but for the reading).

A fault of a line here is the whole file's: none of it is run. What is wrong inside a request's
`body`, beyond the model's name and `stream`, is found when it is run and is that line's own error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from router.inner_json import parsed_json

MAX_CUSTOM_ID_LENGTH = 512
MAX_FAULTS = 100
"""Those told of; the first ones."""
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_FIELDS = frozenset({"custom_id", "method", "url", "body"})
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class InputRules:
    """What a file's requests must be."""

    endpoint: str
    model: str
    max_line_bytes: int
    max_num_lines: int


@dataclass(frozen=True, slots=True)
class LineRequest:
    """One request; `number` counts the file's lines from 1."""

    number: int
    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LineFault:
    """Why the file is unfit; `line` is None where no line is to blame."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "line": self.line, "message": self.message, "param": self.param}


def numbered_lines(file: BinaryIO, max_line_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Lines with something on them, without their ends; None: longer than that.

    Holds one line in memory, never more of a longer one.
    """
    number = 0
    while line := file.readline(max_line_bytes + 2):
        number += 1
        text = line.rstrip(b"\r\n")
        is_long = len(text) > max_line_bytes
        while not line.endswith(b"\n") and (line := file.readline(1 << 16)):
            is_long = is_long or bool(line.rstrip(b"\r\n"))
        text = text.removeprefix(_BOM) if number == 1 else text
        if is_long:
            yield number, None
        elif text.strip():
            yield number, text


def parse_line(number: int, data: bytes | None, rules: InputRules) -> LineRequest | LineFault:
    """The request of one line."""
    if data is None:
        message = f"the line is longer than {rules.max_line_bytes} bytes"
        return LineFault("line_too_long", message, number)
    try:
        value = parsed_json(data.decode())
    except UnicodeDecodeError:
        return LineFault("invalid_json_line", "the line is not UTF-8", number)
    except ValueError as error:
        return LineFault("invalid_json_line", f"the line is not valid JSON: {error}", number)
    if not isinstance(value, dict):
        return LineFault("invalid_json_line", "the line is not a JSON object", number)
    return _request(number, value, rules)


def _request(number: int, value: dict[str, Any], rules: InputRules) -> LineRequest | LineFault:
    fault = _fault_of_fields(value) or _fault_of_values(value, rules)
    if fault is not None:
        code, message, param = fault
        return LineFault(code, message, number, param)
    return LineRequest(number, value["custom_id"], value["body"])


_Fault: TypeAlias = tuple[str, str, str]
"""Code, message and field."""


def _fault_of_fields(value: dict[str, Any]) -> _Fault | None:
    for name in value:
        if name not in _FIELDS:
            return "unknown_parameter", "the line has an unknown field", name[:64]
    for name in sorted(_FIELDS):
        if name not in value:
            return "missing_required_parameter", f"'{name}' is required", name
    return None


def _fault_of_values(value: dict[str, Any], rules: InputRules) -> _Fault | None:
    custom_id, body = value["custom_id"], value["body"]
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID_LENGTH:
        what = f"'custom_id' must be a string of 1 to {MAX_CUSTOM_ID_LENGTH} characters"
        return "invalid_custom_id", what, "custom_id"
    if value["method"] != "POST":
        return "invalid_method", "'method' must be POST", "method"
    if value["url"] != rules.endpoint:
        return "invalid_url", f"'url' must be the batch's endpoint, {rules.endpoint}", "url"
    if not isinstance(body, dict):
        return "invalid_request", "'body' must be a JSON object", "body"
    if body.get("model") != rules.model:
        what = f"'body.model' must be {rules.model!r}, the model served here"
        return "model_not_found", what, "body.model"
    if body.get("stream"):
        return "invalid_request", "a batch's requests can't be streamed", "body.stream"
    return None


class InputCheck:
    """Looks at a file's lines one after the other. A custom_id is remembered by its hash."""

    def __init__(self, rules: InputRules) -> None:
        self._rules = rules
        self._seen: set[bytes] = set()
        self.num_lines = 0
        self.faults: list[LineFault] = []

    @property
    def has_enough(self) -> bool:
        """Looking further would tell nothing more."""
        return len(self.faults) >= MAX_FAULTS or self.num_lines > self._rules.max_num_lines

    def add(self, number: int, data: bytes | None) -> None:
        self.num_lines += 1
        found = parse_line(number, data, self._rules)
        if isinstance(found, LineRequest):
            name = found.custom_id.encode("utf-8", "surrogatepass")
            digest = hashlib.blake2b(name, digest_size=16).digest()
            if digest in self._seen:
                what = "another line has the same 'custom_id'"
                found = LineFault("duplicate_custom_id", what, number, "custom_id")
            else:
                self._seen.add(digest)
        if isinstance(found, LineFault):
            self.faults.append(found)

    def end(self) -> list[LineFault]:
        """All that is wrong with the file; empty: it is fit."""
        if self.num_lines > self._rules.max_num_lines:
            what = f"the file has more than {self._rules.max_num_lines} requests"
            return [LineFault("too_many_requests", what)]
        if not self.num_lines:
            return [LineFault("empty_file", "the file has no requests")]
        return self.faults[:MAX_FAULTS]


class LineReader:
    """A file's lines, some at a time, for who must not block for long. Blocking."""

    def __init__(self, path: Path, max_line_bytes: int) -> None:
        """Raises FileNotFoundError."""
        self._file = path.open("rb")
        self._lines = numbered_lines(self._file, max_line_bytes)

    def some(
        self, *, max_bytes: int = 1 << 16, max_lines: int = 256
    ) -> list[tuple[int, bytes | None]]:
        """Empty: the end."""
        found, size = list[tuple[int, bytes | None]](), 0
        for number, data in self._lines:
            found.append((number, data))
            size += len(data or b"")
            if size >= max_bytes or len(found) >= max_lines:
                break
        return found

    def close(self) -> None:
        self._file.close()
