"""The tree of errors that Tandem raises on purpose.

`BadRequestError` is the client's fault and becomes HTTP 400 in OpenAI's shape; `ConfigError` is the
operator's; everything else is the world (peer, network, memory) and says whether a retry elsewhere
may succeed. Our own broken promises are assertions, not errors of this tree.
"""

from __future__ import annotations


class TandemError(Exception):
    """Base of all deliberate errors. `code` is stable and machine readable."""

    code = "internal_error"
    http_status = 500
    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(TandemError):
    """A setting is unknown, malformed, or asks for what this machine cannot do."""

    code = "config_error"


class CapacityError(ConfigError):
    """The model, or one request of the largest allowed length, does not fit the memory given."""

    code = "capacity_error"


class BadRequestError(TandemError):
    """The request can never succeed as sent. `param` names the offending field, if one does."""

    code = "invalid_request"
    http_status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class ContextLengthError(BadRequestError):
    """Prompt and `max_tokens` together exceed the model's limit."""

    code = "context_length_exceeded"


class ContentPolicyError(BadRequestError):
    """The prompt holds what the tenant's policy forbids."""

    code = "content_policy_violation"


class ModelNotFoundError(BadRequestError):
    """The named model is not served here."""

    code = "model_not_found"
    http_status = 404


class AuthenticationError(TandemError):
    """No API key, or one that is not (or no longer) good. Which of these is not told apart."""

    code = "invalid_api_key"
    http_status = 401


class PermissionDeniedError(TandemError):
    """The API key is good, but not for this model or endpoint."""

    code = "permission_denied"
    http_status = 403


class UnavailableError(TandemError):
    """Nobody can take the request now. `reason` is no_worker, draining, saturated or guard."""

    code = "service_unavailable"
    http_status = 503
    retryable = True

    def __init__(self, message: str, *, reason: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class OverloadedError(UnavailableError):
    """The queue is full; come back after `retry_after_s`."""

    code = "rate_limit_exceeded"
    http_status = 429


class RateLimitedError(OverloadedError):
    """The API key's own rate or concurrency is used up. `reason` is requests, tokens, too_large or
    concurrency."""


class QuotaError(OverloadedError):
    """The API key's tokens of this day are used up."""

    code = "insufficient_quota"


class DeadlineError(TandemError):
    """The request's own deadline passed."""

    code = "deadline_exceeded"
    http_status = 408


class CancelledRequestError(TandemError):
    """The client, or an operator, cancelled the request."""

    code = "cancelled"
    http_status = 499


class WorkerLostError(TandemError):
    """A worker died, restarted, or its stream broke while it held an attempt."""

    code = "worker_lost"
    http_status = 503
    retryable = True


class TransferError(TandemError):
    """KV could not be moved. `reason` is a bounded label: timeout, peer_lost, epoch_mismatch,
    unknown_transfer, repeated_transfer, lease_expired, corrupt, incompatible, finished or
    aborted."""

    code = "transfer_failed"
    http_status = 503
    retryable = True

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
