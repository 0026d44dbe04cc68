"""The outside guard service, as a real HTTP server that answers, late, wrong, or never."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fakes_guard_service import FakeService, saying, serving
from prometheus_client import CollectorRegistry

from core.errors import UnavailableError
from router.guard.circuit_breaker import CircuitBreaker
from router.guard.metrics import GuardMetrics
from router.guard.policy import Action, Stage
from router.guard.service import GuardService, Question, ServiceSettings

QUESTION = Question(Stage.INPUT, "acme", "r-1", "some text")


class FakeClock:
    """Moves when told to."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


@contextlib.asynccontextmanager
async def asking(
    fake: FakeService, clock: FakeClock | None = None, **changed: Any
) -> AsyncIterator[tuple[GuardService, CollectorRegistry]]:
    registry = CollectorRegistry()
    async with serving(fake) as url:
        settings: dict[str, Any] = {
            "url": url,
            "timeout_s": 5.0,
            "fail_open": False,
            "max_concurrent": 4,
            "breaker_failures": 3,
            "breaker_rest_s": 10.0,
        }
        service = GuardService(
            ServiceSettings(**(settings | changed)), GuardMetrics(registry), clock or FakeClock()
        )
        try:
            yield service, registry
        finally:
            await service.close()


def outcomes(registry: CollectorRegistry) -> dict[str, float]:
    return {
        sample.labels["outcome"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "tandem_guard_service_total"
    }


def test_it_is_told_what_is_asked_and_its_word_counts() -> None:
    async def test() -> None:
        fake = FakeService(saying(action="redact", spans=[[5, 7], [0, 2], [1, 4]]))
        async with asking(fake) as (service, registry):
            opinion = await service.ask(QUESTION)
            assert opinion.action is Action.REDACT
            assert [(r.start, r.end) for r in opinion.redactions] == [(0, 4), (5, 7)]
            assert fake.asked == [
                {
                    "stage": "input",
                    "tenant": "acme",
                    "request_id": "r-1",
                    "text": "some text",
                    "before": "",
                }
            ]
            assert outcomes(registry) == {"redact": 1}

    asyncio.run(test())


@pytest.mark.parametrize(
    ("answer", "status", "timeout_s", "outcome"),
    [
        (lambda _: None, b"200 OK", 0.05, "late"),
        (lambda _: b"{}", b"200 OK", 5.0, "wrong"),
        (lambda _: b"no json", b"200 OK", 5.0, "wrong"),
        (lambda _: b'{"action": "explode"}', b"200 OK", 5.0, "wrong"),
        (lambda _: b'{"action": "redact"}', b"200 OK", 5.0, "wrong"),
        (lambda _: b'{"action": "redact", "spans": [[3, 99]]}', b"200 OK", 5.0, "wrong"),
        (lambda _: b" " * 2_000_000, b"200 OK", 5.0, "wrong"),
        (lambda _: b'{"action": "allow"}', b"500 Oh", 5.0, "failed"),
        (lambda _: b'{"action": "allow"}', b"302 Elsewhere", 5.0, "failed"),
    ],
)
@pytest.mark.parametrize("fail_open", [True, False])
def test_without_an_answer_it_fails_open_or_closed(
    answer: Callable[[dict[str, Any]], bytes | None],
    status: bytes,
    timeout_s: float,
    outcome: str,
    fail_open: bool,
) -> None:
    async def test() -> None:
        fake = FakeService(answer, status=status)
        async with asking(fake, timeout_s=timeout_s, fail_open=fail_open) as (service, registry):
            if fail_open:
                assert (await service.ask(QUESTION)).action is Action.ALLOW
            else:
                with pytest.raises(UnavailableError) as caught:
                    await service.ask(QUESTION)
                assert caught.value.reason == "guard" and caught.value.http_status == 503
            assert outcomes(registry) == {outcome: 1}

    asyncio.run(test())


def test_who_is_not_there_fails() -> None:
    async def test() -> None:
        async with asking(FakeService(saying(action="allow")), url="http://127.0.0.1:9/") as (s, r):
            with pytest.raises(UnavailableError):
                await s.ask(QUESTION)
            assert outcomes(r) == {"failed": 1}

    asyncio.run(test())


def test_after_failures_in_a_row_it_is_left_alone_for_a_while() -> None:
    async def test() -> None:
        fake, clock = FakeService(lambda _: b"nonsense"), FakeClock()
        async with asking(fake, clock, fail_open=True) as (service, registry):
            for _ in range(5):
                await service.ask(QUESTION)
            assert len(fake.asked) == 3
            clock.advance(10.0)
            fake.answer = saying(action="flag")
            assert (await service.ask(QUESTION)).action is Action.FLAG
            assert (await service.ask(QUESTION)).action is Action.FLAG
            assert outcomes(registry) == {"wrong": 3, "resting": 2, "flag": 2}

    asyncio.run(test())


def test_no_more_questions_at_once_than_allowed() -> None:
    async def test() -> None:
        fake = FakeService(saying(action="allow"))
        async with asking(fake, max_concurrent=2) as (service, _):
            await asyncio.gather(*(service.ask(QUESTION) for _ in range(12)))
            assert len(fake.asked) == 12 and fake.most_at_once <= 2

    asyncio.run(test())


def test_a_client_that_leaves_while_it_is_tried_again_leaves_the_question_open() -> None:
    breaker = CircuitBreaker(failures=1, rest_s=1.0)
    assert breaker.admits(0.0)
    breaker.failed(0.0)
    assert not breaker.admits(0.5)
    assert breaker.admits(1.0) and not breaker.admits(1.0)
    breaker.abandoned()
    assert breaker.admits(1.0)
    breaker.failed(1.0)
    assert not breaker.admits(1.9)
    assert breaker.admits(2.0)
    breaker.succeeded()
    assert breaker.admits(2.0) and breaker.admits(2.0)
