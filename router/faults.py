"""What a client is told of an error, whichever protocol it speaks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.errors import BadRequestError, TandemError, UnavailableError

RETRY_STATUSES = (429, 503)
RETRY_AFTER_S = 1.0
"""Where the error itself has no advice, as after a worker was lost."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`code` tells every cause of a status apart; `retry_after_s` is set where a retry helps."""

    status: int
    code: str
    message: str
    param: str | None
    retry_after_s: int | None
    reason: str = ""
    """Of those that pass: what there was too much of, or too little."""


def fault_of(error: TandemError) -> Fault:
    """A 503 for want of a worker has its reason for a code: no_worker, draining, ..."""
    status, code = error.http_status, error.code
    if isinstance(error, UnavailableError) and status == 503:
        code = error.reason
    return Fault(
        status=status,
        code=code,
        message=error.message,
        param=error.param if isinstance(error, BadRequestError) else None,
        retry_after_s=_retry_after(error) if status in RETRY_STATUSES else None,
        reason=error.reason if isinstance(error, UnavailableError) else "",
    )


def _retry_after(error: TandemError) -> int:
    advice = error.retry_after_s if isinstance(error, UnavailableError) else RETRY_AFTER_S
    return max(1, math.ceil(advice))
