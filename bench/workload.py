"""The list of requests of a run: pure functions of their settings and a seed.

A prompt is a row of named segments. A segment's content follows from the seed and its key alone, so
requests that share leading keys share a prefix, and nothing is materialised before it is sent.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.arrivals import arrival_times_s
from bench.lengths import LengthRange
from bench.traces import TraceRow


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a synthetic prompt; equal keys begin with equal tokens."""

    key: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request to send: a prompt, of segments or a text as it stands, and how much to ask."""

    index: int
    segments: tuple[Segment, ...]
    output_len: int
    arrival_s: float = 0.0
    """Offset from the start of the run; without meaning in a closed loop."""
    text: str | None = None

    @property
    def input_len(self) -> int:
        """Tokens of the synthetic prompt; 0 for a text, which only its server can count."""
        return sum(segment.num_tokens for segment in self.segments)


def synthetic_items(inputs: LengthRange, outputs: LengthRange, seed: str) -> Iterator[WorkItem]:
    """Endless requests with no prefix in common."""
    rng = random.Random(f"lengths/{seed}")
    for index in itertools.count():
        segment = Segment(f"request/{index}", inputs.draw(rng))
        yield WorkItem(index, (segment,), outputs.draw(rng))


def trace_items(
    rows: Sequence[TraceRow], *, max_input_len: int | None, max_output_len: int | None
) -> Iterator[WorkItem]:
    """The trace's requests in order, cut to the limits; a prompt is cut at its end."""
    for index, row in enumerate(rows):
        segments = () if row.text is not None else _segments(index, row)
        yield WorkItem(
            index=index,
            segments=_cut(segments, max_input_len),
            output_len=min(row.output_len, max_output_len or row.output_len),
            arrival_s=row.arrival_s or 0.0,
            text=row.text,
        )


def with_arrivals(
    items: Iterable[WorkItem], rate_rps: float, burstiness: float, seed: str
) -> Iterator[WorkItem]:
    """The same requests at random times; see `arrival_times_s`."""
    times_s = arrival_times_s(rate_rps, burstiness, random.Random(f"arrivals/{seed}"))
    for item, arrival_s in zip(items, times_s, strict=False):
        yield replace(item, arrival_s=arrival_s)


def at_speed(items: Iterable[WorkItem], speed: float) -> Iterator[WorkItem]:
    """The same requests with the trace's own times, `speed` times as fast, the first at 0."""
    first_s: float | None = None
    for item in items:
        first_s = item.arrival_s if first_s is None else first_s
        yield replace(item, arrival_s=(item.arrival_s - first_s) / speed)


def take(
    items: Iterator[WorkItem], *, num_requests: int | None, duration_s: float | None
) -> Iterator[WorkItem]:
    """At most `num_requests`, and only what arrives before `duration_s`."""
    if duration_s is not None:
        limit_s = duration_s
        items = itertools.takewhile(lambda item: item.arrival_s < limit_s, items)
    return items if num_requests is None else itertools.islice(items, num_requests)


def _segments(index: int, row: TraceRow) -> tuple[Segment, ...]:
    """The row's shared blocks, then what they do not cover under a key of its own."""
    segments: list[Segment] = []
    left = row.input_len
    for block_id in row.block_ids:
        if left == 0:
            break
        segments.append(Segment(f"block/{block_id}", min(left, row.block_len)))
        left -= segments[-1].num_tokens
    if left:
        segments.append(Segment(f"request/{index}", left))
    return tuple(segments)


def _cut(segments: tuple[Segment, ...], max_tokens: int | None) -> tuple[Segment, ...]:
    if max_tokens is None:
        return segments
    kept: list[Segment] = []
    left = max_tokens
    for segment in segments:
        if left == 0:
            break
        kept.append(Segment(segment.key, min(left, segment.num_tokens)))
        left -= kept[-1].num_tokens
    return tuple(kept)
