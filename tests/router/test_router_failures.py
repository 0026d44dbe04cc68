"""What a worker's failure means to the client whose last attempt it was."""

from __future__ import annotations

import pytest

from core.errors import BadRequestError
from core.request import AttemptFailed
from router.fleet.leg_event import WorkerLost
from router.fleet.policy import NoPair
from router.life.failures import error_of, no_pair_error


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("saturated", 429),
        ("draining", 503),
        ("transfer_failed", 503),
        ("worker_lost", 503),
        ("context_length_exceeded", 400),
        ("invalid_request", 400),
        ("deadline_exceeded", 408),
        ("cancelled", 499),
        ("something new", 500),
    ],
)
@pytest.mark.parametrize("retryable", [True, False])
def test_a_code_has_its_status_and_keeps_the_worker_s_retry_advice(
    code: str, status: int, retryable: bool
) -> None:
    error = error_of(AttemptFailed("t", code, "why", retryable, "timeout"))
    assert (error.http_status, error.retryable, error.message) == (status, retryable, "why")
    assert isinstance(error, BadRequestError) == (status == 400)


def test_an_unknown_code_is_passed_on() -> None:
    assert error_of(AttemptFailed("t", "something new", "why", False)).code == "something new"


def test_a_lost_worker_may_be_retried() -> None:
    error = error_of(WorkerLost("t", "w", "gone"))
    assert error.retryable and error.code == "worker_lost"


def test_no_pair_is_full_or_unavailable() -> None:
    assert no_pair_error(NoPair("saturated", "full")).http_status == 429
    assert no_pair_error(NoPair("no_worker", "none")).http_status == 503
