"""Readers of workload traces: what was asked, how long it was, when it came.

    azure     csv   TIMESTAMP, ContextTokens, GeneratedTokens
    lengths   csv   num_prefill_tokens, num_decode_tokens
    mooncake  jsonl timestamp (ms), input_length, output_length, hash_ids (one per 512 tokens)
    generic   jsonl prompt or prompt_len, output_len, optionally timestamp_s
    sharegpt  json  [{conversations: [{from, value}, ...]}, ...]

The file's suffix and the fields of each row tell the kind. Rows without input or output are left
out: no server answers them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, Field, NonNegativeInt, TypeAdapter, ValidationError

from core.errors import ConfigError

MOONCAKE_BLOCK_LEN = 512
# English has about four characters a token; a reply's length need not be exact.
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace.

    `block_ids` name the prompt's leading pieces of `block_len` tokens each: equal ids are equal
    pieces after equal prefixes. `text`, where there is one, is the prompt itself and `input_len`
    then only an estimate.
    """

    input_len: int
    output_len: int
    arrival_s: float | None = None
    block_ids: tuple[int, ...] = ()
    block_len: int = MOONCAKE_BLOCK_LEN
    text: str | None = None


class TraceError(ConfigError):
    """A trace file cannot be read; the message names file and row."""

    code = "trace_error"


def read_trace(path: Path) -> list[TraceRow]:
    """All rows of the file that ask for something. Raises TraceError."""
    try:
        rows = [row for row in _rows(path) if row.input_len > 0 and row.output_len > 0]
    except OSError as error:
        raise TraceError(f"cannot read trace {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not UTF-8 text") from None
    if not rows:
        raise TraceError(f"{path} holds no usable rows")
    return rows


def _rows(path: Path) -> Iterator[TraceRow]:
    if path.suffix == ".csv":
        with path.open(newline="") as lines:
            yield from _csv_rows(path, csv.DictReader(lines))
    elif path.suffix == ".jsonl":
        with path.open() as lines:
            yield from _jsonl_rows(path, lines)
    elif path.suffix == ".json":
        yield from _sharegpt_rows(path, path.read_text())
    else:
        raise TraceError(f"{path}: expected a .csv, .jsonl or .json file")


def _csv_rows(path: Path, lines: Iterable[Mapping[str, str]]) -> Iterator[TraceRow]:
    parse: TypeAdapter[_AzureLine | _LengthsLine] = TypeAdapter(_AzureLine | _LengthsLine)
    start: datetime | None = None
    for number, line in enumerate(lines, start=2):
        try:
            row = parse.validate_python(line)
        except ValidationError as error:
            raise TraceError(f"{path}, line {number}: {_first_problem(error)}") from None
        if isinstance(row, _AzureLine):
            start = start or row.timestamp
            arrival_s = (row.timestamp - start).total_seconds()
            yield TraceRow(row.context_tokens, row.generated_tokens, arrival_s)
        else:
            yield TraceRow(row.num_prefill_tokens, row.num_decode_tokens)


def _jsonl_rows(path: Path, lines: Iterable[str]) -> Iterator[TraceRow]:
    parse: TypeAdapter[_MooncakeLine | _PromptLine | _PromptLenLine] = TypeAdapter(
        _MooncakeLine | _PromptLine | _PromptLenLine
    )
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield parse.validate_json(line).row()
        except ValidationError as error:
            raise TraceError(f"{path}, line {number}: {_first_problem(error)}") from None


def _sharegpt_rows(path: Path, text: str) -> Iterator[TraceRow]:
    """One row a conversation: its first turn as the prompt, the length of the answer to it."""
    try:
        conversations = TypeAdapter(list[_Conversation]).validate_json(text)
    except ValidationError as error:
        raise TraceError(f"{path}: {_first_problem(error)}") from None
    for conversation in conversations:
        if len(conversation.turns) >= 2:
            prompt, reply = conversation.turns[0].value, conversation.turns[1].value
            yield TraceRow(_estimate_tokens(prompt), _estimate_tokens(reply), text=prompt)


def _estimate_tokens(text: str) -> int:
    return -(-len(text) // _CHARACTERS_PER_TOKEN)


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


class _AzureLine(BaseModel):
    timestamp: datetime = Field(alias="TIMESTAMP")
    context_tokens: NonNegativeInt = Field(alias="ContextTokens")
    generated_tokens: NonNegativeInt = Field(alias="GeneratedTokens")


class _LengthsLine(BaseModel):
    num_prefill_tokens: NonNegativeInt
    num_decode_tokens: NonNegativeInt


class _MooncakeLine(BaseModel):
    timestamp: float
    input_length: NonNegativeInt
    output_length: NonNegativeInt
    hash_ids: tuple[int, ...] = ()

    def row(self) -> TraceRow:
        arrival_s = self.timestamp / 1000
        return TraceRow(self.input_length, self.output_length, arrival_s, self.hash_ids)


class _PromptLine(BaseModel):
    prompt: str
    output_len: NonNegativeInt
    timestamp_s: float | None = None

    def row(self) -> TraceRow:
        input_len = _estimate_tokens(self.prompt)
        return TraceRow(input_len, self.output_len, self.timestamp_s, text=self.prompt)


class _PromptLenLine(BaseModel):
    prompt_len: NonNegativeInt
    output_len: NonNegativeInt
    timestamp_s: float | None = None

    def row(self) -> TraceRow:
        return TraceRow(self.prompt_len, self.output_len, self.timestamp_s)


class _Turn(BaseModel):
    value: str


class _Conversation(BaseModel):
    turns: list[_Turn] = Field(alias="conversations")
