"""What both of OpenAI's APIs share in their answers: usage, timings, the frame of an event."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring_ascii

from router.generation import Generation, Usage

DONE = b"data: [DONE]\n\n"
TEXT = "\x00text\x00"
"""Stands for a text that is yet to come, where nothing else can be equal to it."""

_to_json = json.JSONEncoder(separators=(",", ":")).encode
_quoted = encode_basestring_ascii
"""What `_to_json` makes of a text."""


def frame(value: Mapping[str, object]) -> bytes:
    """One server-sent event."""
    return f"data: {_to_json(value)}\n\n".encode()


class ChoiceFrames:
    """The events of one stream that differ in their choice: all else is encoded once."""

    def __init__(self, head: Mapping[str, object], *, include_usage: bool) -> None:
        """Every event holds `head`; `usage` is null in those before the last, unless given."""
        self._before = f'data: {_to_json(head)[:-1]},"choices":['
        self._usage = '"usage":null' if include_usage else ""
        self._after = f"],{self._usage}}}\n\n" if include_usage else "]}\n\n"

    def frame(
        self,
        choice: Mapping[str, object],
        *,
        usage: Mapping[str, object] | None = None,
        others: Mapping[str, object] | None = None,
    ) -> bytes:
        """`others` are fields of this event alone."""
        if usage is None and not others:
            return (self._before + _to_json(choice) + self._after).encode()
        fields = [_to_json(others)[1:-1]] if others else []
        fields += [f'"usage":{_to_json(usage)}' if usage else self._usage]
        after = ",".join(field for field in ("]", *fields) if field)
        return (self._before + _to_json(choice) + after + "}\n\n").encode()

    def around(self, choice: Mapping[str, object]) -> tuple[str, str]:
        """What an event of this choice has before and after its text, which is TEXT."""
        before, after = _to_json(choice).split(_to_json(TEXT))
        return self._before + before, after + self._after


class TextFrames:
    """Events that tell nothing but some text of a choice, as most do: all else is encoded once."""

    def __init__(
        self, frames: ChoiceFrames, choice_of: Callable[[int], Mapping[str, object]]
    ) -> None:
        """`choice_of` is a choice of such an event by its index, with TEXT for its text."""
        self._frames = frames
        self._choice_of = choice_of
        self._around: dict[int, tuple[str, str]] = {}

    def frame(self, index: int, text: str) -> bytes:
        if index not in self._around:
            self._around[index] = self._frames.around(self._choice_of(index))
        before, after = self._around[index]
        return (before + _quoted(text) + after).encode()


class RunningUsage:
    """Tokens of a stream's answer so far, for who wants them in every event."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self._generations = generations
        self._num_tokens = 0

    def add(self, num_tokens: int) -> dict[str, object]:
        """The usage with these."""
        self._num_tokens += num_tokens
        prompt = sum(generation.usage.prompt_tokens for generation in self._generations)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._num_tokens,
            "total_tokens": prompt + self._num_tokens,
        }


def usage_of(generations: Sequence[Generation]) -> dict[str, object]:
    """Tokens of all prompts together. `cached_tokens` are P's own hits, not what was moved."""
    usages = [generation.usage for generation in generations]
    prompt = sum(u.prompt_tokens for u in usages)
    completion = sum(u.completion_tokens for u in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": input_details(usages),
    }


def input_details(usages: Sequence[Usage]) -> dict[str, object]:
    """`pinned_tokens` are told where the client asked for some."""
    details: dict[str, object] = {"cached_tokens": sum(u.cached_tokens for u in usages)}
    pinned = [u.pinned_tokens for u in usages if u.pinned_tokens is not None]
    return details | {"pinned_tokens": sum(pinned)} if pinned else details


def extension_of(generations: Sequence[Generation]) -> dict[str, object]:
    """The `tandem` object, sent only to who asked with `include_timings`: seconds and names.

    Of several prompts it tells about the first.
    """
    generation = generations[0]
    timings, served_by = generation.timings, generation.served_by
    return {
        "request_id": generation.request_id,
        "seed": generation.seed,
        "prefill_worker": served_by.prefill_worker,
        "decode_worker": served_by.decode_worker,
        "num_attempts": served_by.num_attempts,
        "queue_s": timings.queue_s,
        "tokenize_s": timings.tokenize_s,
        "prefill_s": timings.prefill_s,
        "ttft_s": timings.ttft_s,
        "handoff_gap_s": timings.handoff_gap_s,
        "total_s": timings.total_s,
    }
