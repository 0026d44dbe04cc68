"""One answer as its client has it, and how it differs from the undisturbed one (pure).

events of a stream, or one JSON object -> AnswerReader -> Answer -> difference(expected, answer)
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


class Flaw(enum.StrEnum):
    """What is wrong with an answer."""

    DOUBLED = "doubled"
    LOST = "lost"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not the undisturbed one."""

    flaw: Flaw
    problem: str


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """One choice. `tokens`: a JSON text for each, where log-probabilities were asked for."""

    text: str = ""
    tokens: tuple[str, ...] = ()
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """All of an answer that has to be the same every time: not its id, its time, its cache hits."""

    choices: tuple[ChoiceAnswer, ...]
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    """None until a usage has come."""


class AnswerReader:
    """Collects one answer, streamed or whole."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        """When output came."""
        self.problem: Difference | None = None
        """What is wrong with it already by itself."""
        self._texts: dict[int, list[str]] = {}
        self._tokens: dict[int, list[str]] = {}
        self._finish: dict[int, str] = {}
        self._usage: Json = {}
        self._done = False

    def event(self, now_s: float, payload: bytes) -> None:
        """One server-sent event of a stream."""
        if self._done:
            self._note(Flaw.DOUBLED, f"after [DONE] came {payload[:80]!r}")
        elif payload == b"[DONE]":
            self._done = True
        else:
            self._take(json.loads(payload), now_s)

    def body(self, now_s: float, body: bytes) -> None:
        """An answer that came whole."""
        self._take(json.loads(body), now_s)
        self._done = True

    def end(self) -> None:
        """Nothing more comes."""
        if not self._done:
            self._note(Flaw.LOST, "the stream ended before [DONE]")

    def answer(self) -> Answer:
        """What there is so far."""
        choices = tuple(
            ChoiceAnswer(
                "".join(self._texts[index]), tuple(self._tokens[index]), self._finish.get(index)
            )
            for index in sorted(self._texts)
        )
        counts = (self._usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
        return Answer(choices, *counts)

    def _take(self, message: Json, now_s: float) -> None:
        if "error" in message:
            self._note(Flaw.LOST, f"an error event: {json.dumps(message['error'])}")
            return
        for choice in message.get("choices", ()):
            self._take_choice(choice, now_s)
        self._usage = message.get("usage") or self._usage

    def _take_choice(self, choice: Json, now_s: float) -> None:
        index = choice["index"]
        part = choice.get("delta") or choice.get("message") or {}
        text = choice.get("text") or part.get("content") or ""
        tokens = _tokens(choice.get("logprobs") or {})
        if index in self._finish:
            self._note(Flaw.DOUBLED, f"choice {index} went on after its end: {choice}")
        if text or tokens:
            self.times_s.append(now_s)
        self._texts.setdefault(index, []).append(text)
        self._tokens.setdefault(index, []).extend(tokens)
        if choice.get("finish_reason"):
            self._finish[index] = choice["finish_reason"]

    def _note(self, flaw: Flaw, problem: str) -> None:
        self.problem = self.problem or Difference(flaw, problem)


def difference(expected: Answer, actual: Answer) -> Difference | None:
    """How a complete answer differs from the undisturbed one; None if it doesn't."""
    if len(actual.choices) != len(expected.choices):
        return Difference(Flaw.LOST, f"{len(actual.choices)} of {len(expected.choices)} choices")
    for index, (want, have) in enumerate(zip(expected.choices, actual.choices, strict=True)):
        if found := _of_choice(want, have, f"choice {index}"):
            return found
    if actual != expected:
        return Difference(Flaw.WRONG, f"usage {_usage(actual)}, undisturbed {_usage(expected)}")
    return None


def partial_difference(expected: Answer, actual: Answer) -> Difference | None:
    """The same for an answer that its client did not wait for: what came must be a beginning."""
    for index, have in enumerate(actual.choices):
        if index >= len(expected.choices):
            return Difference(Flaw.DOUBLED, f"there is a choice {index}")
        want = expected.choices[index]
        if have.tokens != want.tokens[: len(have.tokens)]:
            return Difference(Flaw.WRONG, _where(want.tokens, have.tokens, f"choice {index}"))
        if not want.text.startswith(have.text):
            return Difference(Flaw.WRONG, _where(want.text, have.text, f"choice {index}"))
    return None


def _of_choice(want: ChoiceAnswer, have: ChoiceAnswer, name: str) -> Difference | None:
    if have == want:
        return None
    if have.tokens != want.tokens:
        where = _where(want.tokens, have.tokens, f"{name}, tokens")
        return Difference(_flaw(want.tokens, have.tokens), where)
    if have.text != want.text:
        where = _where(want.text, have.text, f"{name}, text")
        return Difference(_flaw(want.text, have.text), where)
    if have.finish_reason is None:
        return Difference(Flaw.LOST, f"{name} has no finish reason")
    problem = f"{name}: finish reason {have.finish_reason}, undisturbed {want.finish_reason}"
    return Difference(Flaw.WRONG, problem)


def _flaw(want: Sequence[str], have: Sequence[str]) -> Flaw:
    """Something came twice, or not at all, and the rest is right; or else it is wrong."""
    at = _parting(want, have)
    if len(have) > len(want) and have[at + len(have) - len(want) :] == want[at:]:
        return Flaw.DOUBLED
    if len(have) < len(want) and want[at + len(want) - len(have) :] == have[at:]:
        return Flaw.LOST
    return Flaw.WRONG


def _where(want: Sequence[str], have: Sequence[str], name: str) -> str:
    """The first place where they part."""
    at = _parting(want, have)
    near = slice(at, at + 3)
    return f"{name}: {len(have)} for {len(want)}; from {at} on {have[near]!r} for {want[near]!r}"


def _parting(want: Sequence[str], have: Sequence[str]) -> int:
    """Up to where both are the same."""
    pairs = enumerate(zip(want, have, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(want), len(have)))


def _usage(answer: Answer) -> str:
    return f"{answer.num_prompt_tokens} + {answer.num_output_tokens}"


def _tokens(logprobs: Json) -> list[str]:
    """One JSON text a token, in the shapes of both APIs."""
    if "content" in logprobs:
        return [json.dumps(entry) for entry in logprobs["content"] or ()]
    columns = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    if not logprobs:
        return []
    rows = zip(*(logprobs[column] for column in columns), strict=True)
    return [json.dumps(row) for row in rows]
