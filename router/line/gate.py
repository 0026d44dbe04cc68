"""Whether the workers are to be given another request now (pure).

What waits at a worker can't be overtaken by another tenant any more, so workers get only as much as
keeps them busy until the next first token comes back. Batches fill half of that: the rest is for
whoever comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.request import Phase
from router.fleet.policy import WorkerView
from state.tenants import PriorityClass

MIN_REQUESTS_AHEAD = 2
"""Of each worker, whatever their length: one is computed, one is there when it ends."""
BATCH_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class GateSettings:
    """`ahead_tokens` for each worker that computes prompts, `max_num_waiting` at each of decode."""

    ahead_tokens: int
    max_num_waiting: int
    combined: bool


@dataclass(frozen=True, slots=True)
class InFlight:
    """What this router has sent: requests without a first token, their tokens, and all requests."""

    num_requests: int
    num_tokens: int
    num_running: int


def is_open(
    views: Sequence[WorkerView],
    in_flight: InFlight,
    priority_class: PriorityClass,
    settings: GateSettings,
) -> bool:
    """Whether one more of this class may go. Nobody to serve it: yes, where it waits is bounded."""
    workers = num_prompt_workers(views, settings)
    if not workers:
        return True
    share = BATCH_SHARE if priority_class is PriorityClass.BATCH else 1.0
    few = in_flight.num_requests < MIN_REQUESTS_AHEAD * workers * share
    short = in_flight.num_tokens < settings.ahead_tokens * workers * share
    if not (few or short):
        return False
    decoding = [v for v in views if v.role is Phase.DECODE]
    waiting = sum(view.load.num_waiting for view in decoding)
    crowded = waiting >= settings.max_num_waiting * max(1, len(decoding)) * share
    return not crowded or not in_flight.num_running


def num_prompt_workers(views: Sequence[WorkerView], settings: GateSettings) -> int:
    role = Phase.DECODE if settings.combined else Phase.PREFILL
    return sum(1 for v in views if v.role is role and v.load.ready and not v.draining)
