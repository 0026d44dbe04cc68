"""Legs of attempts on this worker, from submission to the end of their KV's lease: what traces and
logs tell of them.

    submitted    the event loop: the leg is noted, with the trace that it is part of
    ended        the event loop: its span, with the times that its role measured; a line in the log
    lease_ended  any thread: the span of the KV that was lent to another worker

Everything is told after the fact: the step loop knows nothing of it, and a token costs nothing.
Sender and receiver of KV link to each other: a span's id follows from the transfer's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from core.handoff import Handoff
from core.request import Attempt, AttemptDone, AttemptFailed, LegTimings, Phase
from core.trace_context import TraceContext, attempt_span_id, decode_context, span_id_of
from core.tracing import Span, Tracing, Value
from kv_transfer.events import LeaseEnded, LeaseOutcome

log = logging.getLogger(__name__)

KV_SEND, KV_TRANSFER = "kv_send", "kv_transfer"
_MAX_LENDERS = 4096
"""Ended legs whose lease is still open, or was never offered."""


@dataclass(slots=True)
class _Leg:
    request_id: str
    tenant: str
    trace: TraceContext | None
    """The attempt's span at the router."""
    num_tokens: int
    handoff: Handoff | None
    submitted_ns: int
    lends_from_ns: int = 0
    """Since when its KV was there to be pulled, as far as is known."""

    @property
    def is_traced(self) -> bool:
        return self.trace is not None and self.trace.sampled


class LegWatch:
    """Of one worker. `submitted`, `ended` and `abandoned` belong to its event loop."""

    def __init__(
        self,
        tracing: Tracing,
        role: Phase,
        worker_id: str,
        *,
        logs_all: bool = False,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`logs_all`: a line also for legs that end well."""
        self._tracing = tracing
        self._role = role
        self._worker_id = worker_id
        self._logs_all = logs_all
        self._now_ns = now_ns
        self._legs: dict[str, _Leg] = {}
        self._lock = threading.Lock()
        self._lenders: OrderedDict[str, _Leg] = OrderedDict()

    def submitted(self, attempt: Attempt, handoff: Handoff | None) -> None:
        self._legs[attempt.transfer_id] = _Leg(
            request_id=attempt.request_id,
            tenant=attempt.tenant,
            trace=decode_context(attempt.trace_context) if attempt.trace_context else None,
            num_tokens=len(attempt.token_ids),
            handoff=handoff,
            submitted_ns=self._now_ns(),
        )

    def ended(self, event: AttemptDone | AttemptFailed) -> None:
        """The leg's last word. Unknown ids are ignored: refused before they were submitted."""
        leg = self._legs.pop(event.transfer_id, None)
        if leg is None:
            return
        is_done = isinstance(event, AttemptDone)
        timings = event.timings if isinstance(event, AttemptDone) else LegTimings()
        error = "" if isinstance(event, AttemptDone) else (event.reason or event.code)
        if self._logs_all or not is_done:
            self._log(event, leg)
        if leg.is_traced and self._tracing.enabled:
            self._trace(event.transfer_id, leg, timings, error)

    def abandoned(self, transfer_id: str) -> None:
        """Its router is gone; what becomes of it nobody hears."""
        self.ended(AttemptFailed(transfer_id, "router_lost", "the router went away", False))

    def lease_ended(self, message: LeaseEnded) -> None:
        """Nobody needs this KV any more. Thread-safe."""
        transfer_id = message.transfer_id
        owner_id, outcome = transfer_id.partition("+")[0], message.outcome
        with self._lock:
            leg = self._lenders.get(owner_id) or self._legs.get(owner_id)
            if owner_id == transfer_id:
                self._lenders.pop(owner_id, None)
        if leg is None or leg.trace is None or outcome is LeaseOutcome.FINISHED:
            return
        self._tracing.emit(
            Span(
                name=KV_SEND,
                context=leg.trace.below(span_id_of(KV_SEND, transfer_id)),
                # What leaves a decode worker is of an attempt that only begins with that.
                parent_id=attempt_span_id(transfer_id),
                start_ns=leg.lends_from_ns or leg.submitted_ns,
                end_ns=self._now_ns(),
                attributes=self._attributes(transfer_id, leg) | {"tandem.lease": str(outcome)},
                links=(span_id_of(KV_TRANSFER, transfer_id),),
                error=None if outcome is LeaseOutcome.COMPLETED else str(outcome),
            )
        )

    def _trace(self, transfer_id: str, leg: _Leg, timings: LegTimings, error: str) -> None:
        assert leg.trace is not None
        now_ns = self._now_ns()
        begun_ns = leg.submitted_ns + _ns(timings.queue_s)
        own = leg.trace.below(span_id_of(self._role.value, transfer_id))
        attributes = self._attributes(transfer_id, leg) | {"tandem.queue_s": timings.queue_s}
        if timings.prefill_s:
            attributes["tandem.prefill_s"] = timings.prefill_s
        if timings.handoff_s:
            attributes["tandem.handoff_s"] = timings.handoff_s
        if error:
            attributes["error.type"] = error
        self._tracing.emit(
            Span(
                name=self._role.value,
                context=own,
                parent_id=leg.trace.span_id,
                start_ns=leg.submitted_ns,
                end_ns=now_ns,
                attributes=attributes,
                error=error or None,
            )
        )
        if leg.handoff is not None:
            pulled_ns = begun_ns + _ns(timings.transfer_s) if timings.transfer_s else now_ns
            self._tracing.emit(self._transfer(leg, leg.handoff, own, begun_ns, pulled_ns, error))
        leg.lends_from_ns = begun_ns if self._role is Phase.PREFILL else now_ns
        with self._lock:
            self._lenders[transfer_id] = leg
            if len(self._lenders) > _MAX_LENDERS:
                self._lenders.popitem(last=False)

    def _transfer(
        self,
        leg: _Leg,
        handoff: Handoff,
        own: TraceContext,
        begun_ns: int,
        pulled_ns: int,
        error: str,
    ) -> Span:
        transfer_id = handoff.transfer_id
        return Span(
            name=KV_TRANSFER,
            context=own.below(span_id_of(KV_TRANSFER, transfer_id)),
            parent_id=own.span_id,
            start_ns=begun_ns,
            end_ns=pulled_ns,
            attributes=self._attributes(transfer_id, leg)
            | {
                "tandem.kv.from_worker": handoff.worker_id,
                "tandem.kv.num_blocks": handoff.num_blocks,
            },
            links=(span_id_of(KV_SEND, transfer_id),),
            error=error or None,
        )

    def _attributes(self, transfer_id: str, leg: _Leg) -> dict[str, Value]:
        return {
            "tandem.request_id": leg.request_id,
            "tandem.transfer_id": transfer_id,
            "tandem.worker": self._worker_id,
            "tandem.num_tokens": leg.num_tokens,
        }

    def _log(self, event: AttemptDone | AttemptFailed, leg: _Leg) -> None:
        level, words = logging.INFO, "done"
        if isinstance(event, AttemptFailed):
            words = f"{event.code}: {event.message}"
            level = logging.INFO if event.code in ("cancelled", "draining") else logging.WARNING
        log.log(
            level,
            "%s of request %s: %s",
            self._role,
            leg.request_id,
            words,
            extra={
                "request_id": leg.request_id,
                "trace_id": "" if leg.trace is None else leg.trace.trace_id,
                "tenant": leg.tenant,
                "worker": self._worker_id,
            },
        )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
