"""docs/FIELDS.md has a row for every field, and says of it what the code does."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable

import openai
import pytest
from fakes_fields_table import Row, rows
from google.protobuf.descriptor import Descriptor
from pydantic import BaseModel

from protos import inference_pb2 as pb
from router.http.responses_schema import ResponsesBody
from router.http.schema import NEUTRAL, ChatBody, CompletionBody, StreamOptions

NESTED = ("chat", "sampling")
"""Messages of a gRPC request whose fields have rows of their own."""


def names_of(body: type[BaseModel]) -> set[str]:
    return set(body.model_fields) | {f"stream_options.{n}" for n in StreamOptions.model_fields}


def state_of(name: str, body: type[BaseModel]) -> str:
    if name in names_of(body):
        return "yes"
    return "neutral" if name in NEUTRAL else "–"


def grpc_names(message: Descriptor, prefix: str = "") -> set[str]:
    names: set[str] = set()
    for field in message.fields:
        if field.name in NESTED and field.message_type is not None:
            names |= grpc_names(field.message_type, f"{field.name}.")
        else:
            names.add(prefix + field.name)
    return names


def test_every_field_has_one_row() -> None:
    named = Counter(row.field for row in rows())
    assert max(named.values()) == 1
    known = names_of(ChatBody) | names_of(CompletionBody) | NEUTRAL.keys()
    assert known - named.keys() == set(), "fields without a row in docs/FIELDS.md"
    assert named.keys() - known == set(), "rows of docs/FIELDS.md without a field"


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_every_argument_of_the_openai_package_has_a_row(api: str) -> None:
    client = openai.OpenAI(api_key="none")
    create: dict[str, Callable[..., object]] = {
        "chat": client.chat.completions.create,
        "completions": client.completions.create,
    }
    told = {row.field for row in rows() if getattr(row, api) != "–"}
    assert arguments_of(create[api]) - told == set()


def test_every_argument_of_the_openai_package_is_a_field_of_responses() -> None:
    create = openai.OpenAI(api_key="none").responses.create
    assert arguments_of(create) - ResponsesBody.model_fields.keys() == set()


def arguments_of(create: Callable[..., object]) -> set[str]:
    """What becomes part of the body."""
    beside = {"extra_headers", "extra_query", "extra_body", "timeout"}
    return set(inspect.signature(create).parameters) - beside


def test_rows_tell_which_api_has_the_field() -> None:
    for row in rows():
        found = (state_of(row.field, ChatBody), state_of(row.field, CompletionBody))
        assert (row.chat, row.completions) == found, row.field


def test_every_field_of_grpc_stands_in_a_row() -> None:
    told = [name for row in rows() for name in row.grpc]
    assert sorted(told) == sorted(grpc_names(pb.CompleteRequest.DESCRIPTOR))


def test_rows_of_neutral_fields_list_their_values() -> None:
    for row in rows():
        if "neutral" in (row.chat, row.completions):
            assert neutral_values(row) == [*NEUTRAL[row.field]], row.field


def neutral_values(row: Row) -> list[object]:
    """What stands there as JSON, separated by commas."""
    listed = re.split(r"\.|:", row.text)[0] if '"type"' not in row.text else row.text.rstrip(".")
    decoder, values, rest = json.JSONDecoder(), [], listed.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip(", ")
    return values
