"""From what a leg says about its end to the error that a client, or the next attempt, gets."""

from __future__ import annotations

import logging

from core.errors import (
    BadRequestError,
    CancelledRequestError,
    ContextLengthError,
    DeadlineError,
    OverloadedError,
    TandemError,
    TransferError,
    UnavailableError,
    WorkerLostError,
)
from core.request import AttemptFailed, Phase
from router.fleet.leg_event import WorkerLost
from router.fleet.policy import NoPair
from router.life.admitted_request import AdmittedRequest

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0


def log_failure(request: AdmittedRequest, leg: Phase, error: TandemError, *, worker: str) -> None:
    """A line for every attempt that fails; that a worker drains is no failure."""
    log.log(
        logging.INFO if is_draining(error) else logging.WARNING,
        "%s of request %s failed on %s: %s",
        leg,
        request.request_id,
        worker,
        error.message,
        extra={"request_id": request.request_id, "worker": worker},
    )


def error_of(event: AttemptFailed | WorkerLost) -> TandemError:
    """The typed error of a leg's end; whether a retry may help is the worker's word."""
    if isinstance(event, WorkerLost):
        return WorkerLostError(event.message)
    error = _typed(event)
    error.retryable = event.retryable
    return error


def _typed(event: AttemptFailed) -> TandemError:
    match event.code:
        case TransferError.code:
            return TransferError(event.message, reason=event.reason)
        case "saturated" | "draining":
            return _unavailable(event.message, event.code)
        case OverloadedError.code | UnavailableError.code:
            return _unavailable(event.message, event.reason)
        case ContextLengthError.code:
            return ContextLengthError(event.message)
        case BadRequestError.code:
            return BadRequestError(event.message)
        case "grammar_failed" | "nothing_allowed":
            # The client's grammar met a limit on the way, or its fields forbid every token
            return BadRequestError(event.message, code=event.code)
        case DeadlineError.code:
            return DeadlineError(event.message)
        case CancelledRequestError.code:
            return CancelledRequestError(event.message)
        case WorkerLostError.code:
            return WorkerLostError(event.message)
        case _:
            error = TandemError(event.message)
            error.code = event.code or TandemError.code
            return error


def is_draining(error: TandemError) -> bool:
    """The worker takes nothing new because it is about to leave: no failure, somebody else will."""
    return isinstance(error, UnavailableError) and error.reason == "draining"


def no_pair_error(no_pair: NoPair) -> UnavailableError:
    """What a client hears that waited for a pair in vain."""
    return _unavailable(no_pair.message, no_pair.reason)


def _unavailable(message: str, reason: str) -> UnavailableError:
    kind = OverloadedError if reason == "saturated" else UnavailableError
    return kind(message, reason=reason or "no_worker", retry_after_s=RETRY_AFTER_S)


def broken_promise_error(worker_id: str) -> WorkerLostError:
    """A worker said that it was done and owed tokens: as bad as a lost one."""
    return WorkerLostError(f"worker {worker_id} ended an attempt before its last token")
