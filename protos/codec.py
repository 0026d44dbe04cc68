"""Wire <-> core for the router-worker protocol; a round trip is the identity."""

from __future__ import annotations

from core.handoff import Handoff, Moved, Started
from core.histogram import Histogram
from core.load import LoadReport, StepTotals
from core.request import (
    Attempt,
    AttemptDone,
    AttemptFailed,
    FinishReason,
    LegTimings,
    Pinned,
    PinnedPrefix,
    PinWish,
    PromptLogprobs,
    SamplingParams,
    TokenEvent,
    TokenLogprobs,
)
from protos import worker_pb2 as pb


def sampling_to_wire(s: SamplingParams) -> pb.SamplingParams:
    return pb.SamplingParams(
        max_tokens=s.max_tokens,
        temperature=s.temperature,
        top_k=s.top_k,
        top_p=s.top_p,
        min_p=s.min_p,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        repetition_penalty=s.repetition_penalty,
        logit_bias=dict(s.logit_bias),
        logprobs=s.logprobs,
        seed=s.seed,
        min_tokens=s.min_tokens,
        stop_token_ids=s.stop_token_ids,
        ignore_eos=s.ignore_eos,
        bad_words=[pb.TokenSequence(ids=word) for word in s.bad_words],
        allowed_token_ids=s.allowed_token_ids,
        prompt_logprobs=s.prompt_logprobs,
    )


def sampling_from_wire(s: pb.SamplingParams) -> SamplingParams:
    return SamplingParams(
        max_tokens=s.max_tokens,
        temperature=s.temperature,
        top_k=s.top_k,
        top_p=s.top_p,
        min_p=s.min_p,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        repetition_penalty=s.repetition_penalty,
        logit_bias=tuple(sorted(s.logit_bias.items())),
        logprobs=s.logprobs if s.HasField("logprobs") else None,
        seed=s.seed,
        min_tokens=s.min_tokens,
        stop_token_ids=tuple(s.stop_token_ids),
        ignore_eos=s.ignore_eos,
        bad_words=tuple(tuple(word.ids) for word in s.bad_words),
        allowed_token_ids=tuple(s.allowed_token_ids),
        prompt_logprobs=s.prompt_logprobs if s.HasField("prompt_logprobs") else None,
    )


def attempt_to_wire(a: Attempt) -> pb.Attempt:
    return pb.Attempt(
        request_id=a.request_id,
        transfer_id=a.transfer_id,
        model=a.model,
        token_ids=a.token_ids,
        num_prompt_tokens=a.num_prompt_tokens,
        choices=a.choices,
        sampling=sampling_to_wire(a.sampling),
        deadline_s=a.deadline_s,
        priority=a.priority,
        cache_salt=a.cache_salt,
        tenant=a.tenant,
        adapter=a.adapter,
        trace_context=a.trace_context,
        grammar=a.grammar,
        pins=None if a.pins is None else _pins_to_wire(a.pins),
    )


def attempt_from_wire(a: pb.Attempt) -> Attempt:
    return Attempt(
        request_id=a.request_id,
        transfer_id=a.transfer_id,
        model=a.model,
        token_ids=tuple(a.token_ids),
        num_prompt_tokens=a.num_prompt_tokens,
        choices=tuple(a.choices),
        sampling=sampling_from_wire(a.sampling),
        deadline_s=a.deadline_s,
        priority=a.priority,
        cache_salt=a.cache_salt,
        tenant=a.tenant,
        adapter=a.adapter,
        trace_context=a.trace_context,
        grammar=a.grammar,
        pins=_pins_from_wire(a.pins) if a.HasField("pins") else None,
    )


def _pins_to_wire(p: PinWish) -> pb.PinWish:
    return pb.PinWish(
        prefixes=[
            pb.PinWish.Prefix(num_tokens=prefix.num_tokens, ttl_s=prefix.ttl_s)
            for prefix in p.prefixes
        ],
        owner=p.owner,
        max_owned_tokens=p.max_owned_tokens,
    )


def _pins_from_wire(p: pb.PinWish) -> PinWish:
    return PinWish(
        prefixes=tuple(PinnedPrefix(prefix.num_tokens, prefix.ttl_s) for prefix in p.prefixes),
        owner=p.owner,
        max_owned_tokens=p.max_owned_tokens if p.HasField("max_owned_tokens") else None,
    )


def handoff_to_wire(h: Handoff) -> pb.Handoff:
    return pb.Handoff(
        transfer_id=h.transfer_id,
        worker_id=h.worker_id,
        epoch=h.epoch,
        address=h.address,
        compat_key=h.compat_key,
        num_tokens=h.num_tokens,
        first_block=h.first_block,
        num_blocks=h.num_blocks,
        lease_s=h.lease_s,
    )


def handoff_from_wire(h: pb.Handoff) -> Handoff:
    return Handoff(
        transfer_id=h.transfer_id,
        worker_id=h.worker_id,
        epoch=h.epoch,
        address=h.address,
        compat_key=h.compat_key,
        num_tokens=h.num_tokens,
        first_block=h.first_block,
        num_blocks=h.num_blocks,
        lease_s=h.lease_s,
    )


def add_token(batch: pb.TokenBatch, t: TokenEvent) -> None:
    """Appends the token; what is absent is not even named, since every token comes through here."""
    token = batch.tokens.add(
        transfer_id=t.transfer_id, choice=t.choice, position=t.position, token_id=t.token_id
    )
    if t.logprobs is not None:
        _fill_logprobs(token.logprobs, t.logprobs)
    if t.finish_reason is not None:
        token.finish_reason = t.finish_reason


def token_from_wire(t: pb.Token) -> TokenEvent:
    """By position, since names of arguments take time and every token comes through here."""
    logprobs = _logprobs_from_wire(t.logprobs) if t.HasField("logprobs") else None
    reason = FinishReason(t.finish_reason) if t.finish_reason else None
    return TokenEvent(t.transfer_id, t.choice, t.position, t.token_id, logprobs, reason)


def _fill_logprobs(wire: pb.Logprobs, logprobs: TokenLogprobs) -> None:
    wire.logprob = logprobs.logprob
    wire.top_token_ids.extend([token_id for token_id, _ in logprobs.top])
    wire.top_logprobs.extend([logprob for _, logprob in logprobs.top])


def _logprobs_from_wire(wire: pb.Logprobs) -> TokenLogprobs:
    return TokenLogprobs(
        wire.logprob, tuple(zip(wire.top_token_ids, wire.top_logprobs, strict=True))
    )


def _prompt_logprobs_to_wire(event: PromptLogprobs) -> pb.SessionEvent:
    wire = pb.PromptLogprobs(transfer_id=event.transfer_id, start=event.start)
    for logprobs in event.logprobs:
        _fill_logprobs(wire.logprobs.add(), logprobs)
    return pb.SessionEvent(prompt_logprobs=wire)


def load_to_wire(r: LoadReport) -> pb.LoadReport:
    return pb.LoadReport(
        num_waiting=r.num_waiting,
        num_running=r.num_running,
        waiting_prefill_tokens=r.waiting_prefill_tokens,
        kv_blocks=r.kv_blocks,
        num_promised_blocks=r.num_promised_blocks,
        kv_unfilled_slots=r.kv_unfilled_slots,
        last_step_age_s=r.last_step_age_s,
        num_preemptions=r.num_preemptions,
        pinned_blocks=r.pinned_blocks,
        num_pins_dropped=r.num_pins_dropped,
        ready=r.ready,
        draining=r.draining,
        kv_transfer_bytes=r.kv_transfer_bytes,
        kv_transfer_s=histogram_to_wire(r.kv_transfer_s),
        kv_transfer_failures=r.kv_transfer_failures,
        cancel_to_free_s=histogram_to_wire(r.cancel_to_free_s),
        steps=None if r.steps is None else steps_to_wire(r.steps),
    )


def load_from_wire(r: pb.LoadReport) -> LoadReport:
    return LoadReport(
        num_waiting=r.num_waiting,
        num_running=r.num_running,
        waiting_prefill_tokens=r.waiting_prefill_tokens,
        kv_blocks=dict(r.kv_blocks),
        num_promised_blocks=r.num_promised_blocks,
        kv_unfilled_slots=r.kv_unfilled_slots,
        last_step_age_s=r.last_step_age_s,
        num_preemptions=r.num_preemptions,
        pinned_blocks=dict(r.pinned_blocks),
        num_pins_dropped=r.num_pins_dropped,
        ready=r.ready,
        draining=r.draining,
        kv_transfer_bytes=r.kv_transfer_bytes,
        kv_transfer_s=histogram_from_wire(r.kv_transfer_s),
        kv_transfer_failures=dict(r.kv_transfer_failures),
        cancel_to_free_s=histogram_from_wire(r.cancel_to_free_s),
        steps=steps_from_wire(r.steps) if r.HasField("steps") else None,
    )


def steps_to_wire(s: StepTotals) -> pb.StepTotals:
    return pb.StepTotals(
        step_s=s.step_s,
        operations=s.operations,
        read_bytes=s.read_bytes,
        peak_operations_per_s=s.peak_operations_per_s,
        peak_read_bytes_per_s=s.peak_read_bytes_per_s,
        mfu=s.mfu,
        mbu=s.mbu,
    )


def steps_from_wire(s: pb.StepTotals) -> StepTotals:
    return StepTotals(
        step_s=s.step_s,
        operations=s.operations,
        read_bytes=s.read_bytes,
        peak_operations_per_s=s.peak_operations_per_s,
        peak_read_bytes_per_s=s.peak_read_bytes_per_s,
        mfu=s.mfu,
        mbu=s.mbu,
    )


def histogram_to_wire(h: Histogram) -> pb.Histogram:
    return pb.Histogram(bounds_s=h.bounds_s, counts=h.counts, sum_s=h.sum_s)


def histogram_from_wire(h: pb.Histogram) -> Histogram:
    return Histogram(tuple(h.bounds_s), tuple(h.counts), h.sum_s)


WorkerEvent = (
    Started
    | TokenEvent
    | PromptLogprobs
    | Pinned
    | Moved
    | AttemptDone
    | AttemptFailed
    | LoadReport
)
"""Everything a worker says on a session after its welcome."""


def events_to_wire(events: list[WorkerEvent]) -> list[pb.SessionEvent]:
    """Keeps the order; consecutive tokens share one message."""
    wire: list[pb.SessionEvent] = []
    batch: pb.TokenBatch | None = None  # of the last message, if it has one
    for event in events:
        if isinstance(event, TokenEvent):
            if batch is None:
                wire.append(pb.SessionEvent(tokens=pb.TokenBatch()))
                batch = wire[-1].tokens
            add_token(batch, event)
        else:
            batch = None
            wire.append(_single_to_wire(event))
    return wire


def _single_to_wire(
    event: Started | PromptLogprobs | Pinned | Moved | AttemptDone | AttemptFailed | LoadReport,
) -> pb.SessionEvent:
    match event:
        case Started():
            started = pb.Started(
                transfer_id=event.transfer_id,
                queue_s=event.queue_s,
                num_cached_tokens=event.num_cached_tokens,
                handoff=handoff_to_wire(event.handoff) if event.handoff else None,
            )
            return pb.SessionEvent(started=started)
        case PromptLogprobs():
            return _prompt_logprobs_to_wire(event)
        case Pinned():
            pinned = pb.Pinned(
                transfer_id=event.transfer_id,
                num_tokens=event.num_tokens,
                token_seconds=event.token_seconds,
            )
            return pb.SessionEvent(pinned=pinned)
        case Moved():
            moved = pb.Moved(
                transfer_id=event.transfer_id,
                choices=event.choices,
                handoff=handoff_to_wire(event.handoff) if event.handoff else None,
            )
            return pb.SessionEvent(moved=moved)
        case AttemptDone():
            done = pb.AttemptDone(
                transfer_id=event.transfer_id,
                queue_s=event.timings.queue_s,
                prefill_s=event.timings.prefill_s,
                transfer_s=event.timings.transfer_s,
                handoff_s=event.timings.handoff_s,
            )
            return pb.SessionEvent(done=done)
        case AttemptFailed():
            failed = pb.AttemptFailed(
                transfer_id=event.transfer_id,
                code=event.code,
                message=event.message,
                retryable=event.retryable,
                reason=event.reason,
            )
            return pb.SessionEvent(failed=failed)
        case LoadReport():
            return pb.SessionEvent(load=load_to_wire(event))


def events_from_wire(message: pb.SessionEvent) -> list[WorkerEvent]:
    """The events in one message; a welcome holds none."""
    match message.WhichOneof("kind"):
        case "started":
            s = message.started
            handoff = handoff_from_wire(s.handoff) if s.HasField("handoff") else None
            return [Started(s.transfer_id, s.queue_s, s.num_cached_tokens, handoff)]
        case "moved":
            m = message.moved
            handoff = handoff_from_wire(m.handoff) if m.HasField("handoff") else None
            return [Moved(m.transfer_id, tuple(m.choices), handoff)]
        case "prompt_logprobs":
            p = message.prompt_logprobs
            logprobs = tuple(_logprobs_from_wire(entry) for entry in p.logprobs)
            return [PromptLogprobs(p.transfer_id, p.start, logprobs)]
        case "pinned":
            kept = message.pinned
            return [Pinned(kept.transfer_id, kept.num_tokens, kept.token_seconds)]
        case "tokens":
            return [token_from_wire(t) for t in message.tokens.tokens]
        case "done":
            d = message.done
            timings = LegTimings(d.queue_s, d.prefill_s, d.transfer_s, d.handoff_s)
            return [AttemptDone(d.transfer_id, timings)]
        case "failed":
            f = message.failed
            return [AttemptFailed(f.transfer_id, f.code, f.message, f.retryable, f.reason)]
        case "load":
            return [load_from_wire(message.load)]
        case _:
            return []
