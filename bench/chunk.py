"""The chunks of one streamed answer: when output came, how much by the server's own count."""

from __future__ import annotations

import json
from typing import cast

from bench.record import RequestRecord

Json = dict[str, object]


class ChunkLog:
    """Collects one answer's chunks."""

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._ended_s: float | None = None
        self._usage: Json = {}
        self._timings: Json = {}
        self._ended = False
        self._error: str | None = None

    def add(self, now_s: float, payload: bytes) -> None:
        """Takes the data of one event that arrived at `now_s`."""
        if payload == b"[DONE]":
            self._ended = True
            return
        try:
            chunk = json.loads(payload)
        except ValueError:
            self._error = "malformed chunk"
            return
        if not isinstance(chunk, dict) or "error" in chunk:
            self._error = _error_label(chunk)
            return
        if chunk.get("choices"):
            self._ended_s = now_s
        if carries_output(chunk):
            self._times_s.append(now_s)
        self._usage = _object(chunk.get("usage")) or self._usage
        self._timings = _object(chunk.get("tandem")) or self._timings

    def problem(self) -> str | None:
        """Why the answer does not count, or None."""
        if self._error is not None:
            return self._error
        if not self._ended:
            return "stream ended early"
        if not _count(self._usage, "completion_tokens"):
            return "no usage"
        return None if self._times_s else "no output"

    def record(
        self, index: int, started_s: float, finished_s: float, error: str | None
    ) -> RequestRecord:
        """All of it as a record."""
        details = _object(self._usage.get("prompt_tokens_details"))
        return RequestRecord(
            index=index,
            started_s=started_s,
            finished_s=finished_s,
            chunk_times_s=tuple(self._times_s),
            last_token_s=self._ended_s,
            num_prompt_tokens=_count(self._usage, "prompt_tokens"),
            num_cached_tokens=_count(details, "cached_tokens"),
            num_output_tokens=_count(self._usage, "completion_tokens"),
            error=error,
            timings=_durations_s(self._timings),
        )


def carries_output(chunk: Json) -> bool:
    """Whether the chunk stands for output, even if its tokens decode to no text (yet).

    A chunk that only opens (role) or only closes (finish reason, usage) an answer does not.
    """
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices:
        return False
    choice = _object(choices[0])
    delta = _object(choice.get("delta"))
    text = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
    if text or delta.get("tool_calls"):
        return True
    return not (choice.get("finish_reason") or delta.get("role"))


def _error_label(chunk: object) -> str:
    error = _object(_object(chunk).get("error"))
    return f"error event {error.get('code') or error.get('type') or ''}".strip()


def _object(value: object) -> Json:
    return cast(Json, value) if isinstance(value, dict) else {}


def _count(usage: Json, name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) else 0


def _durations_s(values: Json) -> dict[str, float]:
    """The durations among the values: numbers whose names say that they are seconds."""
    return {
        name: float(value)
        for name, value in values.items()
        if name.endswith("_s") and isinstance(value, int | float)
    }
