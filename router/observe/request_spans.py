"""One request as spans of a trace, made from its timeline when it is over.

    chat MODEL                      the request, below the client's span if it sent one
      tokenize
      queue                         from the tokens until the first attempt leaves
      attempt                       one for each; below it are the workers' spans:
        prefill  kv_send              P
        decode > kv_transfer          D
      token_check                   a suspicious token of the answer was compared, by the guard

Attributes follow OpenTelemetry's semantic conventions for generative AI, with `tandem.*` for what
they don't know. Prompts, answers and stop strings are in none of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.request import Phase
from core.trace_context import TraceContext, attempt_span_id, span_id_of
from core.tracing import Span, SpanEvent, Value
from router.life.attempt_timeline import AttemptTimeline
from router.life.check_timeline import CheckTimeline
from router.observe.request_record import RequestRecord
from router.request_spec import RequestSpec

PROVIDER = "tandem"
ATTEMPT = "attempt"


def asked_attributes(spec: RequestSpec) -> dict[str, Value]:
    """What a client asked for, but for texts."""
    attributes: dict[str, Value] = {
        "gen_ai.request.frequency_penalty": spec.frequency_penalty,
        "gen_ai.request.presence_penalty": spec.presence_penalty,
    }
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(spec, name)
        if value is not None:
            attributes[f"gen_ai.request.{name}"] = float(value)
    if spec.n != 1:
        attributes["gen_ai.request.choice.count"] = spec.n
    if spec.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = spec.max_tokens
    if spec.seed is not None:
        attributes["gen_ai.request.seed"] = spec.seed
    return attributes


def request_spans(record: RequestRecord, trace: TraceContext) -> Iterator[Span]:
    """The request's own span and those below it that no worker makes. It has ended."""
    timeline = record.timeline
    assert timeline.finished is not None
    yield _request(record, trace)
    if timeline.tokenize_began is not None:
        tokenized = timeline.finished if timeline.tokenized is None else timeline.tokenized
        yield _phase(record, trace, "tokenize", timeline.tokenize_began, tokenized)
    if timeline.tokenized is not None:
        sent = timeline.finished if timeline.sent is None else timeline.sent
        yield _phase(record, trace, "queue", timeline.tokenized, sent)
    for attempt in timeline.attempts.values():
        yield _attempt(record, trace, attempt)
    for number, check in enumerate(timeline.checks, 1):
        yield _check(record, trace, number, check)


def _request(record: RequestRecord, trace: TraceContext) -> Span:
    timeline, timings = record.timeline, record.timeline.timings()
    assert timeline.finished is not None
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": record.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.response.id": record.request_id,
        "gen_ai.output.type": "text",
        **record.asked,
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": record.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.num_cached_tokens,
        "tandem.priority_class": record.priority_class,
        "tandem.num_attempts": len(timeline.attempts),
    }
    if record.finish_reasons:
        attributes["gen_ai.response.finish_reasons"] = record.finish_reasons
    if record.client_id:
        attributes["tandem.client_request_id"] = record.client_id
    if record.tenant:
        attributes["tandem.tenant"] = record.tenant
    for name, seconds in (
        ("gen_ai.server.time_to_first_token", timings.ttft_s),
        ("tandem.queue_s", timings.queue_s),
        ("tandem.tokenize_s", timings.tokenize_s),
        ("tandem.prefill_s", timings.prefill_s),
        ("tandem.handoff_gap_s", timings.handoff_gap_s),
    ):
        if seconds is not None:
            attributes[name] = seconds
    ended_well = record.outcome == "finished"
    if not ended_well:
        attributes["error.type"] = record.outcome
    return Span(
        name=f"{record.operation} {record.model}",
        context=trace,
        parent_id=record.parent_span_id,
        start_ns=record.epoch_ns(timeline.received),
        end_ns=record.epoch_ns(timeline.finished),
        attributes=attributes,
        events=tuple(_events(record)),
        error=None if ended_well else record.outcome,
        serves=True,
    )


def _events(record: RequestRecord) -> Iterator[SpanEvent]:
    timeline = record.timeline
    for name, moment in (
        ("prefill_started", timeline.started),
        ("first_token", timeline.first_token),
        ("second_token", timeline.second_token),
    ):
        if moment is not None:
            yield SpanEvent(name, record.epoch_ns(moment))


def _phase(record: RequestRecord, trace: TraceContext, name: str, start: float, end: float) -> Span:
    return Span(
        name=name,
        context=trace.below(span_id_of(name, record.request_id)),
        parent_id=trace.span_id,
        start_ns=record.epoch_ns(start),
        end_ns=record.epoch_ns(end),
    )


def _check(record: RequestRecord, trace: TraceContext, number: int, check: CheckTimeline) -> Span:
    attributes: dict[str, Value] = {
        "tandem.choice": check.choice,
        "tandem.position": check.position,
        "tandem.token_check.outcome": str(check.outcome),
        "tandem.token_check.num_resamples": check.num_resamples,
    }
    if check.divergence is not None:
        attributes["tandem.token_check.divergence"] = check.divergence
    return Span(
        name="token_check",
        context=trace.below(span_id_of(f"token_check/{number}", record.request_id)),
        parent_id=trace.span_id,
        start_ns=record.epoch_ns(check.began),
        end_ns=record.epoch_ns(check.ended),
        attributes=attributes,
    )


def _attempt(record: RequestRecord, trace: TraceContext, attempt: AttemptTimeline) -> Span:
    finished = record.timeline.finished
    assert finished is not None
    attributes: dict[str, Value] = {
        "tandem.request_id": record.request_id,
        "tandem.transfer_id": attempt.transfer_id,
        "tandem.attempt.number": attempt.number,
        "tandem.attempt.choices": tuple(str(choice) for choice in attempt.choices),
        "tandem.attempt.num_tokens": attempt.num_tokens,
        "tandem.attempt.follows_kv": attempt.follows_kv,
        "tandem.decode_worker": attempt.decode_worker,
    }
    if attempt.prefill_worker:
        attributes["tandem.prefill_worker"] = attempt.prefill_worker
    if attempt.error_code:
        attributes["error.type"] = attempt.error_code
    if attempt.error_reason:
        attributes["tandem.error.reason"] = attempt.error_reason
    if attempt.failed_leg is not None:
        attributes["tandem.failed_leg"] = attempt.failed_leg.value
    moments = ((Phase.PREFILL.value, attempt.started), (Phase.DECODE.value, attempt.decoding))
    return Span(
        name=ATTEMPT,
        context=trace.below(attempt_span_id(attempt.transfer_id)),
        parent_id=trace.span_id,
        start_ns=record.epoch_ns(attempt.sent),
        end_ns=record.epoch_ns(finished if attempt.ended is None else attempt.ended),
        attributes=attributes,
        events=tuple(
            SpanEvent(f"{name}_started", record.epoch_ns(moment))
            for name, moment in moments
            if moment is not None
        ),
        error=attempt.error_code or None,
    )
