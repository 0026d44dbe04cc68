"""An outside guard service: asked over HTTP, within a deadline, as long as it answers.

    POST {stage, tenant, request_id, text, before}  ->  {action, spans}

`spans` are pairs of begin and end in characters of `text`, for the action redact. `before` is what
has gone on to the client before `text`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx
from pydantic import BaseModel, ConfigDict

from core.clock import Clock
from core.errors import UnavailableError
from router.guard.circuit_breaker import CircuitBreaker
from router.guard.metrics import GuardMetrics
from router.guard.places import united
from router.guard.policy import REDACTED, Action, Stage
from router.guard.verdict import Redaction

MAX_ANSWER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Where the service is, and how far it is relied on. Times in seconds."""

    url: str
    timeout_s: float
    fail_open: bool
    max_concurrent: int
    breaker_failures: int
    breaker_rest_s: float


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the service says of a text."""

    action: Action
    redactions: tuple[Redaction, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A text, and where it comes from."""

    stage: Stage
    tenant: str
    request_id: str
    text: str
    before: str = ""


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)

    action: Action
    spans: list[tuple[int, int]] = []


class _NoOpinionError(Exception):
    """`outcome` says why: a label of metrics."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class GuardService:
    """One client of the service. Close it when done."""

    def __init__(self, settings: ServiceSettings, metrics: GuardMetrics, clock: Clock) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._breaker = CircuitBreaker(
            failures=settings.breaker_failures, rest_s=settings.breaker_rest_s
        )
        self._slots = asyncio.Semaphore(settings.max_concurrent)
        self._client = httpx.AsyncClient(
            timeout=settings.timeout_s,
            limits=httpx.Limits(max_connections=settings.max_concurrent),
            trust_env=False,
        )

    async def ask(self, question: Question) -> Opinion:
        """The service's opinion. Without one: ALLOW if it may fail open.

        Raises UnavailableError with the reason `guard` otherwise.
        """
        try:
            opinion = await self._ask(question)
        except _NoOpinionError as error:
            self._metrics.service(error.outcome)
            if self._settings.fail_open:
                return Opinion(Action.ALLOW)
            raise UnavailableError(
                "the service that checks requests does not answer", reason="guard"
            ) from None
        self._metrics.service(opinion.action)
        return opinion

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, question: Question) -> Opinion:
        if not self._breaker.admits(self._clock.now()):
            raise _NoOpinionError("resting")
        try:
            async with asyncio.timeout(self._settings.timeout_s), self._slots:
                opinion = _opinion(await self._post(question), len(question.text))
        except (TimeoutError, httpx.TimeoutException):
            raise self._failed("late") from None
        except (httpx.HTTPError, httpx.InvalidURL):
            raise self._failed("failed") from None
        except ValueError:
            raise self._failed("wrong") from None
        except asyncio.CancelledError:
            self._breaker.abandoned()
            raise
        self._breaker.succeeded()
        return opinion

    def _failed(self, outcome: str) -> _NoOpinionError:
        self._breaker.failed(self._clock.now())
        return _NoOpinionError(outcome)

    async def _post(self, question: Question) -> bytes:
        body = {
            "stage": question.stage,
            "tenant": question.tenant,
            "request_id": question.request_id,
            "text": question.text,
            "before": question.before,
        }
        data = b""
        async with self._client.stream("POST", self._settings.url, json=body) as response:
            response.raise_for_status()
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > MAX_ANSWER_BYTES:
                    raise ValueError("the answer is far too long")
        return data


def _opinion(data: bytes, num_characters: int) -> Opinion:
    """Raises ValueError for what is no opinion on a text of this length."""
    answer = _Answer.model_validate_json(data)
    if any(not 0 <= begin < end <= num_characters for begin, end in answer.spans):
        raise ValueError("a span lies outside the text")
    if answer.action is Action.REDACT and not answer.spans:
        raise ValueError("nothing is said to be redacted")
    parts = tuple(Redaction(begin, end, REDACTED) for begin, end in united(answer.spans))
    return Opinion(answer.action, parts if answer.action is Action.REDACT else ())
