"""What `/debug/requests` tells: recent requests with their times, workers and attempts.

Never a prompt or an answer. Times are seconds from the request's arrival.
"""

from __future__ import annotations

import dataclasses
from itertools import islice

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from core.errors import BadRequestError
from router.life.attempt_timeline import AttemptTimeline
from router.life.check_timeline import CheckTimeline
from router.observe.observer import Observer
from router.observe.request_record import RequestRecord

MAX_LISTED = 1000


class RequestUnknownError(BadRequestError):
    """No request of this name is remembered."""

    code = "request_not_found"
    http_status = 404


def add_debug(app: FastAPI, observer: Observer) -> None:
    """`/debug/requests?limit=&state=waiting|running|ended` and `/debug/requests/{id}`, where id is
    a request's, its answer's, or the client's `x-request-id`."""

    @app.get("/debug/requests")
    async def requests(limit: int = 100, state: str = "") -> Response:
        chosen = (r for r in observer.ring.newest() if not state or r.state == state)
        listed = islice(chosen, max(0, min(limit, MAX_LISTED)))
        return JSONResponse({"requests": [summary(record) for record in listed]})

    @app.get("/debug/requests/{name:path}")
    async def request(name: str) -> Response:
        found = observer.ring.find(name)
        if not found:
            raise RequestUnknownError(f"no request '{name[:64]}' is remembered here")
        return JSONResponse({"requests": [detail(record) for record in found]})


def summary(record: RequestRecord) -> dict[str, object]:
    """A request on one line."""
    return {
        "request_id": record.request_id,
        "client_request_id": record.client_id or None,
        "trace_id": record.trace_id or None,
        "operation": record.operation,
        "model": record.model,
        "priority_class": record.priority_class,
        "tenant": record.tenant or None,
        "state": record.state,
        "outcome": record.outcome or None,
        "received_at": record.epoch_ns(record.timeline.received) / 1e9,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "pinned_tokens": record.num_pinned_tokens,
        "output_tokens": record.num_output_tokens,
        "finish_reasons": list(record.finish_reasons),
        "num_attempts": len(record.timeline.attempts),
        "prefill_worker": record.prefill_worker or None,
        "decode_worker": record.decode_worker or None,
        **dataclasses.asdict(record.timeline.timings()),
    }


def detail(record: RequestRecord) -> dict[str, object]:
    """A request with its moments and attempts. Token counts come with its end."""
    timeline = record.timeline
    moments = {
        name: getattr(timeline, name)
        for name in (
            "tokenize_began",
            "tokenized",
            "sent",
            "started",
            "first_token",
            "second_token",
            "finished",
        )
    }
    return summary(record) | {
        "moments_s": {name: _since(record, moment) for name, moment in moments.items()},
        "attempts": [_attempt(record, attempt) for attempt in timeline.attempts.values()],
        "token_checks": [_check(record, check) for check in timeline.checks],
    }


def _attempt(record: RequestRecord, attempt: AttemptTimeline) -> dict[str, object]:
    return {
        "number": attempt.number,
        "transfer_id": attempt.transfer_id,
        "choices": list(attempt.choices),
        "num_tokens": attempt.num_tokens,
        "cached_tokens": attempt.num_cached_tokens,
        "prefill_worker": attempt.prefill_worker or None,
        "decode_worker": attempt.decode_worker or None,
        "follows_kv": attempt.follows_kv,
        "outcome": attempt.outcome,
        "failed_leg": attempt.failed_leg,
        "error_reason": attempt.error_reason or None,
        "sent_s": _since(record, attempt.sent),
        "started_s": _since(record, attempt.started),
        "decoding_s": _since(record, attempt.decoding),
        "ended_s": _since(record, attempt.ended),
        "legs": {leg.value: dataclasses.asdict(t) for leg, t in attempt.legs.items()},
    }


def _check(record: RequestRecord, check: CheckTimeline) -> dict[str, object]:
    return {
        "choice": check.choice,
        "position": check.position,
        "outcome": check.outcome,
        "divergence": check.divergence,
        "num_resamples": check.num_resamples,
        "began_s": _since(record, check.began),
        "ended_s": _since(record, check.ended),
    }


def _since(record: RequestRecord, moment: float | None) -> float | None:
    return None if moment is None else moment - record.timeline.received
