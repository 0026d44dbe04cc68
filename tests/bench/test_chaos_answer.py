"""Answers of a chaos run: read from events or whole, and compared with the undisturbed ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from bench.chaos.answer import (
    Answer,
    AnswerReader,
    Flaw,
    difference,
    partial_difference,
)

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def logprobs(*tokens: str) -> dict[str, Any]:
    return {
        "tokens": list(tokens),
        "token_logprobs": [-0.25] * len(tokens),
        "top_logprobs": [{token: -0.25} for token in tokens],
        "text_offset": list(range(len(tokens))),
    }


def piece(text: str, finish: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "text": text, "logprobs": logprobs(text), "finish_reason": finish}
    return json.dumps({"choices": [choice]}).encode()


def streamed(*events: bytes, done: bool = True) -> AnswerReader:
    reader = AnswerReader()
    usage = json.dumps({"choices": [], "usage": USAGE}).encode()
    for number, event in enumerate((*events, *((usage, b"[DONE]") if done else ()))):
        reader.event(float(number), event)
    reader.end()
    return reader


EXPECTED = streamed(piece("a"), piece("b"), piece("c", "length")).answer()


def flaw_of(reader: AnswerReader) -> Flaw | None:
    found = reader.problem or difference(EXPECTED, reader.answer())
    return None if found is None else found.flaw


def test_the_same_answer_is_right_however_it_is_cut_and_cached() -> None:
    reader = streamed(piece("a"), piece("b"), piece("c", "length"))
    assert reader.times_s == [0.0, 1.0, 2.0]
    assert flaw_of(reader) is None
    assert EXPECTED.num_prompt_tokens == 5 and EXPECTED.num_output_tokens == 3


def test_a_token_that_comes_twice_is_doubled() -> None:
    assert flaw_of(streamed(piece("a"), piece("b"), piece("b"), piece("c", "length"))) == "doubled"


def test_a_choice_that_goes_on_after_its_end_is_doubled() -> None:
    assert flaw_of(streamed(piece("a", "length"), piece("b"))) == "doubled"


def test_a_token_that_never_comes_is_lost() -> None:
    assert flaw_of(streamed(piece("a"), piece("c", "length"))) == "lost"


def test_a_stream_without_its_end_is_lost() -> None:
    assert flaw_of(streamed(piece("a"), piece("b"), piece("c", "length"), done=False)) == "lost"


def test_a_stream_without_a_finish_reason_is_lost() -> None:
    assert flaw_of(streamed(piece("a"), piece("b"), piece("c"))) == "lost"


def test_a_stream_that_ends_with_an_error_is_lost() -> None:
    reader = streamed(piece("a"), json.dumps({"error": {"code": "worker_lost"}}).encode())
    assert flaw_of(reader) == "lost"
    assert reader.problem is not None and "worker_lost" in reader.problem.problem


def test_an_answer_of_another_length_and_other_tokens_is_wrong() -> None:
    events = (piece("a"), piece("x"), piece("y"), piece("z", "length"))
    assert flaw_of(streamed(*events)) == "wrong"


def test_another_token_is_wrong_and_so_is_another_log_probability() -> None:
    assert flaw_of(streamed(piece("a"), piece("x"), piece("c", "length"))) == "wrong"
    event = piece("b").replace(b"-0.25", b"-0.26")
    assert flaw_of(streamed(piece("a"), event, piece("c", "length"))) == "wrong"


def test_another_usage_or_finish_reason_is_wrong() -> None:
    found = difference(EXPECTED, replace(EXPECTED, num_output_tokens=4))
    assert found is not None and found.flaw is Flaw.WRONG and "5 + 4" in found.problem
    assert flaw_of(streamed(piece("a"), piece("b"), piece("c", "stop"))) == "wrong"


def test_a_missing_choice_is_lost() -> None:
    assert difference(EXPECTED, Answer(())) is not None


def test_what_came_before_a_client_left_must_be_a_beginning() -> None:
    good = streamed(piece("a"), piece("b"), done=False).answer()
    bad = streamed(piece("a"), piece("a"), done=False).answer()
    assert partial_difference(EXPECTED, good) is None
    assert partial_difference(EXPECTED, Answer(())) is None
    assert partial_difference(EXPECTED, bad) is not None


def test_a_chat_answer_is_the_same_streamed_and_whole() -> None:
    entries = [{"token": t, "logprob": -0.5, "top_logprobs": []} for t in "ab"]
    chunks = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}]
    stream, whole = AnswerReader(), AnswerReader()
    for number, (delta, entry) in enumerate(zip(chunks, (None, *entries), strict=True)):
        choice = {"index": 0, "delta": delta, "finish_reason": "stop" if number == 2 else None}
        choice["logprobs"] = {"content": [entry]} if entry else None
        stream.event(float(number), json.dumps({"choices": [choice]}).encode())
    stream.event(3.0, json.dumps({"choices": [], "usage": USAGE}).encode())
    message = {"role": "assistant", "content": "ab"}
    choice = {"index": 0, "message": message, "logprobs": {"content": entries}}
    choice["finish_reason"] = "stop"
    whole.body(3.0, json.dumps({"choices": [choice], "usage": USAGE}).encode())
    assert stream.times_s == [1.0, 2.0]
    assert difference(stream.answer(), whole.answer()) is None
