"""The HTTP and event readers on bytes, split in every way the network may split them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.chunk import ChunkLog, carries_output
from bench.http_connection import Origin, parse_origin
from bench.http_response import EventReader, ProtocolError, ResponseReader
from core.errors import ConfigError

CUTS = st.lists(st.integers(0, 2000), max_size=12)
PAYLOADS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1), max_size=6
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """`data` cut at the places given."""
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


def chunked(bodies: list[bytes]) -> bytes:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(body), body) for body in bodies if body)
    return head + chunks + b"0\r\nTrailer: x\r\n\r\n"


@given(st.lists(st.binary(max_size=80), max_size=8), CUTS)
def test_a_chunked_body_arrives_whole_however_it_is_cut(
    bodies: list[bytes], cuts: list[int]
) -> None:
    reader = ResponseReader()
    body = b"".join(reader.feed(piece) for piece in pieces(chunked(bodies), cuts))
    assert body == b"".join(bodies)
    assert (reader.status, reader.complete, reader.reusable) == (200, True, True)


@given(st.binary(max_size=200), CUTS)
def test_a_counted_body_arrives_whole_however_it_is_cut(body: bytes, cuts: list[int]) -> None:
    reader = ResponseReader()
    data = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    assert b"".join(reader.feed(piece) for piece in pieces(data, cuts)) == body
    assert (reader.status, reader.complete) == (404, True)


@given(PAYLOADS, CUTS, st.sampled_from(["\n", "\r\n"]))
def test_events_arrive_whole_however_they_are_cut(
    payloads: list[str], cuts: list[int], line_end: str
) -> None:
    text = "".join(
        f": comment{line_end}id: 7{line_end}data: {payload}{line_end * 2}" for payload in payloads
    )
    reader = EventReader()
    events = [event for piece in pieces(text.encode(), cuts) for event in reader.feed(piece)]
    assert events == [payload.encode() for payload in payloads]


def test_an_event_of_several_data_lines_is_joined() -> None:
    assert EventReader().feed(b"data: a\ndata:b\n\n") == [b"a\nb"]


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nhalf") == b"half"
    assert not reader.complete
    reader.end_of_stream()
    assert reader.complete


def test_a_response_cut_short_is_an_error() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal")
    with pytest.raises(ProtocolError):
        reader.end_of_stream()


def test_a_connection_that_is_to_be_closed_is_not_reusable() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
    assert reader.complete and not reader.reusable


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        ResponseReader().feed(data)


def test_an_origin_has_its_schemes_port_unless_it_names_one() -> None:
    assert parse_origin("http://host:81/v1") == Origin("host", 81)
    assert parse_origin("https://host") == Origin("host", 443, tls=True)
    with pytest.raises(ConfigError):
        parse_origin("host:8000")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"delta": {"role": "assistant", "content": ""}}, False),
        ({"delta": {"role": "assistant", "content": "Hi"}}, True),
        ({"delta": {"content": "Hi"}, "finish_reason": "stop"}, True),
        ({"delta": {}, "finish_reason": "stop"}, False),
        ({"delta": {"reasoning_content": "Hm"}}, True),
        ({"delta": {"content": ""}}, True),  # a token that decodes to nothing yet
        ({"text": " word", "finish_reason": None}, True),
        ({"text": "", "finish_reason": "length"}, False),
    ],
)
def test_a_chunk_that_only_opens_or_closes_an_answer_is_no_output(
    choice: dict[str, object], expected: bool
) -> None:
    assert carries_output({"choices": [choice]}) is expected
    assert not carries_output({"choices": []})


def logged(*events: object) -> ChunkLog:
    log = ChunkLog()
    for now_s, event in enumerate(events):
        log.add(float(now_s), event if isinstance(event, bytes) else json.dumps(event).encode())
    return log


OUTPUT = {"choices": [{"text": "a"}]}
END = {"choices": [{"text": "", "finish_reason": "length"}]}
TANDEM = {"queue_s": 0.5, "handoff_gap_s": None, "seed": 7, "decode_worker": "decode-0"}
USAGE = {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 9}}


def test_tokens_are_counted_by_usage_and_not_by_chunks() -> None:
    log = logged(OUTPUT, OUTPUT, END, {**USAGE, "tandem": TANDEM}, b"[DONE]")
    assert log.problem() is None
    record = log.record(4, 0.0, 9.0, None)
    assert (record.num_output_tokens, record.num_prompt_tokens) == (3, 9)
    assert record.chunk_times_s == (0.0, 1.0)
    assert record.last_token_s == 2.0
    assert record.timings == {"queue_s": 0.5}


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([OUTPUT, USAGE], "stream ended early"),
        ([OUTPUT, b"[DONE]"], "no usage"),
        ([USAGE, b"[DONE]"], "no output"),
        ([b"{", USAGE, b"[DONE]"], "malformed chunk"),
        ([b"[1]", b"[DONE]"], "error event"),
        ([OUTPUT, {"error": {"code": "worker_lost"}}], "error event worker_lost"),
    ],
)
def test_an_answer_that_does_not_count_says_why(events: list[object], problem: str) -> None:
    assert logged(*events).problem() == problem
