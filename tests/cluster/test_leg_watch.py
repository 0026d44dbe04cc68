"""What is told of legs whose ends come in an odd order, or not well."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field

import pytest

from cluster.leg_watch import KV_SEND, KV_TRANSFER, LegWatch
from cluster.logs import JsonLines
from core.handoff import Handoff
from core.request import Attempt, AttemptDone, AttemptFailed, LegTimings, Phase, SamplingParams
from core.trace_context import TraceContext, attempt_span_id
from core.tracing import Span
from kv_transfer.events import LeaseEnded, LeaseOutcome

TRACE = TraceContext("a" * 32, "b" * 16, sampled=True)
HANDOFF = Handoff("t", "prefill-0", "e", "h:1", "k", 3, 0, 1, 30.0)
SECOND = 10**9


@dataclass
class Kept:
    """A `Tracing` that keeps what it is given."""

    enabled: bool = True
    spans: dict[str, Span] = field(default_factory=dict)

    def emit(self, span: Span) -> None:
        self.spans[span.name] = span

    def close(self, timeout_s: float) -> None:
        return


def attempt(trace: TraceContext | None = TRACE) -> Attempt:
    return Attempt(
        request_id="r",
        transfer_id="t",
        model="m",
        token_ids=(1, 2, 3),
        num_prompt_tokens=3,
        choices=(0,),
        sampling=SamplingParams(max_tokens=4),
        deadline_s=9.0,
        tenant="somebody",
        trace_context="" if trace is None else trace.encode(),
    )


@dataclass
class Watched:
    role: Phase
    tracing: Kept = field(default_factory=Kept)
    now_ns: int = 0

    def __post_init__(self) -> None:
        self.watch = LegWatch(self.tracing, self.role, "w-0", now_ns=lambda: self.now_ns)

    def submit(self, handoff: Handoff | None = None, trace: TraceContext | None = TRACE) -> None:
        self.watch.submitted(attempt(trace), handoff)

    def done(self, at_s: float, timings: LegTimings) -> None:
        self.now_ns = round(at_s * SECOND)
        self.watch.ended(AttemptDone("t", timings))


def test_a_decode_leg_is_a_span_with_its_pull_below() -> None:
    d = Watched(Phase.DECODE)
    d.submit(HANDOFF)
    d.done(5.0, LegTimings(queue_s=1.0, transfer_s=2.0, handoff_s=0.5))
    leg, pull = d.tracing.spans["decode"], d.tracing.spans[KV_TRANSFER]
    assert (leg.start_ns, leg.end_ns, leg.parent_id) == (0, 5 * SECOND, TRACE.span_id)
    assert (pull.start_ns, pull.end_ns) == (SECOND, 3 * SECOND)
    assert pull.parent_id == leg.context.span_id and leg.error is None


@pytest.mark.parametrize("lease_first", [True, False])
def test_the_lent_kv_is_a_span_whichever_end_is_heard_first(lease_first: bool) -> None:
    p = Watched(Phase.PREFILL)
    p.submit()
    pulled = LeaseEnded("t", LeaseOutcome.COMPLETED)
    if lease_first:
        p.watch.lease_ended(pulled)
    p.done(2.0, LegTimings(queue_s=1.0, prefill_s=1.0))
    if not lease_first:
        p.watch.lease_ended(pulled)
    sent = p.tracing.spans[KV_SEND]
    assert sent.parent_id == attempt_span_id("t") and sent.error is None
    assert sent.start_ns == (0 if lease_first else SECOND)
    assert set(p.tracing.spans) == {"prefill", KV_SEND}


def test_kv_that_leaves_a_decode_worker_belongs_to_the_attempt_that_pulls_it() -> None:
    d = Watched(Phase.DECODE)
    d.submit(HANDOFF)
    d.done(5.0, LegTimings())
    d.watch.lease_ended(LeaseEnded("t+0", LeaseOutcome.COMPLETED))
    assert d.tracing.spans[KV_SEND].parent_id == attempt_span_id("t+0")


def test_kv_that_nobody_needs_or_that_nobody_fetched_in_time() -> None:
    for outcome, error in ((LeaseOutcome.FINISHED, None), (LeaseOutcome.EXPIRED, "expired")):
        p = Watched(Phase.PREFILL)
        p.submit()
        p.done(2.0, LegTimings())
        p.watch.lease_ended(LeaseEnded("t", outcome))
        span = p.tracing.spans.get(KV_SEND)
        assert (None if span is None else span.error) == error


def test_a_failed_pull_is_a_failed_span_and_a_line_with_all_ids(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.handler.setFormatter(JsonLines("decode-0"))
    d = Watched(Phase.DECODE)
    d.submit(HANDOFF)
    d.watch.ended(AttemptFailed("t", "transfer_failed", "no answer", True, "timeout"))
    assert d.tracing.spans["decode"].error == d.tracing.spans[KV_TRANSFER].error == "timeout"
    line = json.loads(caplog.text.splitlines()[-1])
    assert (line["request_id"], line["trace_id"], line["tenant"], line["worker"]) == (
        "r",
        TRACE.trace_id,
        "somebody",
        "w-0",
    )
    assert line["level"] == "warning" and line["process"] == "decode-0"


def test_what_is_not_traced_makes_no_spans() -> None:
    for trace in (None, TraceContext("a" * 32, "b" * 16, sampled=False)):
        p = Watched(Phase.PREFILL)
        p.submit(trace=trace)
        p.done(1.0, LegTimings())
        assert p.tracing.spans.keys() <= {"prefill"} and not [
            s for s in p.tracing.spans.values() if s.context.sampled
        ]


def test_a_router_that_goes_away_ends_its_legs_once() -> None:
    p = Watched(Phase.PREFILL)
    p.submit()
    p.watch.abandoned("t")
    assert p.tracing.spans.pop("prefill").error == "router_lost"
    p.watch.ended(AttemptFailed("t", "cancelled", "cancelled by the router", False))
    assert not p.tracing.spans


def test_legs_that_end_well_have_a_line_only_if_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for logs_all in (False, True):
            watch = LegWatch(Kept(enabled=False), Phase.DECODE, "w", logs_all=logs_all)
            watch.submitted(attempt(), None)
            watch.ended(AttemptDone("t"))
    assert [r.getMessage() for r in caplog.records] == ["decode of request r: done"]
