"""One line's request, asked of the house as a client would, and what became of it."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from core.errors import OverloadedError, PermissionDeniedError, TandemError, UnavailableError
from router.batch.input_lines import LineRequest
from router.door import Door
from router.faults import fault_of
from router.http.answers import GENERATES
from router.http.body import checked_body
from router.http.errors import error_body
from router.identifiers import new_request_id
from router.observe.origin import enter_origin
from router.tenants.call import Call, enter_call
from router.tenants.gatekeeper import check_endpoint

MAX_TRIES = 3
"""Of a request that cost a worker, or its whole deadline: the next one may cost another."""
MAX_WAIT_S = 60.0
LINE_STATES = ("completed", "failed", "cancelled", "expired")


@dataclass(frozen=True, slots=True)
class LineResult:
    """One line of the output file, or of the error file."""

    result: dict[str, Any]
    is_error: bool
    was_run: bool = True
    usage: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """One of LINE_STATES."""
        if self.was_run:
            return "failed" if self.is_error else "completed"
        return str(self.result["error"]["code"]).removeprefix("batch_")


async def answer_line(door: Door, endpoint: str, request: LineRequest, call: Call) -> LineResult:
    """The answer as HTTP would give it. In a task of its own, which from here on is the call's.

    Raises TandemError.
    """
    enter_call(call)
    enter_origin(None, None, None)
    if call.key is not None:
        check_endpoint(call.key, endpoint)
    kind, begin = GENERATES[endpoint]
    body = checked_body(json.dumps(request.body).encode(), kind)
    answer, generation = begin(door, body, door.clock.now(), "")
    whole = await answer.whole()
    response = {"status_code": 200, "request_id": generation.request_id, "body": whole}
    return LineResult(
        _result(request.custom_id, response, None), is_error=False, usage=_usage_of(whole)
    )


def wait_before_retry_s(error: TandemError, num_tries: int) -> float | None:
    """Seconds until it is worth trying again; None: the error is the line's answer.

    What is too much now will be less later. What failed otherwise is tried a few times only.
    """
    if isinstance(error, UnavailableError):
        if isinstance(error, OverloadedError) and error.reason == "too_large":
            return None
        return min(MAX_WAIT_S, max(error.retry_after_s, 0.1 * 2.0 ** min(num_tries, 10)))
    passes = error.retryable or error.http_status == 408
    if not passes or isinstance(error, PermissionDeniedError) or num_tries >= MAX_TRIES:
        return None
    return min(MAX_WAIT_S, 0.1 * 2.0**num_tries)


def refused(custom_id: str, error: TandemError) -> LineResult:
    """The house's own answer was an error."""
    response = {
        "status_code": fault_of(error).status,
        "request_id": new_request_id(),
        "body": error_body(error),
    }
    return LineResult(_result(custom_id, response, None), is_error=True)


def not_run(custom_id: str, code: str, message: str) -> LineResult:
    """The batch ended before this line was answered."""
    return LineResult(
        _result(custom_id, None, {"code": code, "message": message}),
        is_error=True,
        was_run=False,
    )


def _result(
    custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None
) -> dict[str, Any]:
    return {
        "id": f"batch_req_{secrets.token_hex(14)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }


def _usage_of(body: dict[str, Any]) -> dict[str, int]:
    """Whichever names its API has for them."""
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return {
        "input_tokens": usage.get("prompt_tokens", usage.get("input_tokens", 0)),
        "output_tokens": usage.get("completion_tokens", usage.get("output_tokens", 0)),
        "cached_tokens": details.get("cached_tokens", 0),
    }
