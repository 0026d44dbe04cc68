"""Files that nobody means well with: each is refused as a whole, with the lines to blame."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from fakes_batches import jsonl, line
from fakes_house import MODEL

from router.batch.input_lines import InputCheck, InputRules, LineFault, numbered_lines

RULES = InputRules("/v1/completions", MODEL, max_line_bytes=2000, max_num_lines=5)


def faults_of(data: bytes) -> list[LineFault]:
    check = InputCheck(RULES)
    for number, text in numbered_lines(io.BytesIO(data), RULES.max_line_bytes):
        check.add(number, text)
    return check.end()


def codes_of(data: bytes) -> list[tuple[str, int | None]]:
    return [(fault.code, fault.line) for fault in faults_of(data)]


GOOD = jsonl([line("a")])


@pytest.mark.parametrize(
    "data",
    [
        GOOD,
        GOOD.rstrip(b"\n"),
        GOOD.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + GOOD,
        b"\n\n" + GOOD + b"  \n",
    ],
    ids=["plain", "no last newline", "CRLF", "byte order mark", "blank lines"],
)
def test_a_good_line_is_good_however_it_ends(data: bytes) -> None:
    assert codes_of(data) == []


def changed(**fields: Any) -> bytes:
    return jsonl([line("a") | fields])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\xff\xfe{}\n", "invalid_json_line"),
        (b"{\n", "invalid_json_line"),
        (b"[1]\n", "invalid_json_line"),
        (b'{"custom_id": NaN}\n', "invalid_json_line"),
        (b"[" * 1900 + b"\n", "invalid_json_line"),
        (b'{"a":' * 380 + b"\n", "invalid_json_line"),
        (changed(body={"a": "HERE"}).replace(b'"HERE"', b"1e999"), "invalid_json_line"),
        (changed(body="HERE").replace(b'"HERE"', b"[" * 250 + b"]" * 250), "invalid_json_line"),
        (b"x" * 100_000 + b"\n", "line_too_long"),
        (changed(custom_id="x" * 1_000_000), "line_too_long"),
        (changed(custom_id="x" * 513), "invalid_custom_id"),
        (changed(custom_id=""), "invalid_custom_id"),
        (changed(custom_id=7), "invalid_custom_id"),
        (changed(method="GET"), "invalid_method"),
        (changed(url="/v1/chat/completions"), "invalid_url"),
        (changed(url=["/v1/completions"]), "invalid_url"),
        (changed(body="{}"), "invalid_request"),
        (changed(body={"model": "other"}), "model_not_found"),
        (changed(body={}), "model_not_found"),
        (jsonl([line("a", stream=True)]), "invalid_request"),
        (changed(more=1), "unknown_parameter"),
        (jsonl([{"custom_id": "a"}]), "missing_required_parameter"),
    ],
)
def test_a_bad_line_is_named_and_others_after_it_are_looked_at(data: bytes, code: str) -> None:
    assert codes_of(GOOD + data + jsonl([line("b")]) + b"?\n") == [
        (code, 2),
        ("invalid_json_line", 4),
    ]


def test_a_name_is_given_once() -> None:
    data = jsonl([line("a"), line("b"), line("a"), line("\ud800"), line("\ud800")])
    assert codes_of(data) == [("duplicate_custom_id", 3), ("duplicate_custom_id", 5)]


@pytest.mark.parametrize("data", [b"", b"\n \r\n"])
def test_a_file_without_requests_is_unfit(data: bytes) -> None:
    assert codes_of(data) == [("empty_file", None)]


def test_a_file_has_so_many_requests_at_most() -> None:
    assert codes_of(jsonl([line(str(n)) for n in range(5)])) == []
    assert codes_of(jsonl([line(str(n)) for n in range(6)])) == [("too_many_requests", None)]


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_the_limit_of_a_line_does_not_count_its_end(end: bytes, extra: int) -> None:
    data = b"x" * (RULES.max_line_bytes + extra) + end
    ((_, text),) = numbered_lines(io.BytesIO(data), RULES.max_line_bytes)
    assert (text is None) == bool(extra)


def test_faults_are_json() -> None:
    (fault,) = faults_of(changed(method="GET"))
    assert json.loads(json.dumps(fault.to_json()))["param"] == "method"
