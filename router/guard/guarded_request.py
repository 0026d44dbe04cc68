"""One request that the guard has let in, and watches until its answer has ended."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from core.clock import Clock
from router.guard.metrics import GuardMetrics
from router.guard.output_filter import OutputFilter
from router.guard.policy import Stage
from router.guard.resampling.checked_life import BeginLife
from router.guard.resampling.token_checks import TokenChecks
from router.guard.service_window import ServiceWindow
from router.life.admitted_request import AdmittedRequest
from router.life.choice import Choice, Delta
from router.life.served_life import ServedLife
from router.life.timeline import RequestTimeline
from router.request_spec import ChatPrompt, RequestSpec
from router.texts import Texts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChoiceCheck:
    """What a choice's answer passes through: either may be absent."""

    terms: OutputFilter | None
    service: ServiceWindow | None

    @property
    def blocked(self) -> bool:
        by_terms = self.terms is not None and self.terms.blocked
        return by_terms or (self.service is not None and self.service.blocked)

    async def push(self, delta: Delta) -> list[Delta]:
        deltas = [delta] if self.terms is None else self.terms.push(delta)
        if self.service is None:
            return deltas
        passed: list[Delta] = []
        for each in deltas:
            if not self.service.blocked:
                passed += await self.service.push(each)
        return passed


class GuardedRequest:
    """`prompt` is what is to be tokenised instead of the client's own."""

    def __init__(
        self,
        request_id: str,
        prompt: ChatPrompt | str | tuple[int, ...],
        new_check: Callable[[], ChoiceCheck] | None,
        token_checks: TokenChecks | None,
        metrics: GuardMetrics,
    ) -> None:
        """`new_check` is called for each choice; None: texts of answers are not looked at.
        `token_checks` serve the request where its tokens are."""
        self.prompt = prompt
        self._token_checks = token_checks
        self._request_id = request_id
        self._new_check = new_check
        self._metrics = metrics

    def life(
        self,
        request: AdmittedRequest,
        choices: Sequence[Choice],
        begin: BeginLife,
        timeline: RequestTimeline,
        spec: RequestSpec,
        texts: Texts,
        clock: Clock,
    ) -> ServedLife:
        """What serves the request: the life that `begin` gives, or one that checks its tokens."""
        if self._token_checks is None or spec.max_tokens == 0:
            return begin(request, choices, timeline)
        asked = replace(spec, prompt=self.prompt)
        return self._token_checks.life(request, choices, begin, timeline, asked, texts, clock)

    def passed(
        self, deltas: AsyncGenerator[Delta, None], end_choice: Callable[[int], None]
    ) -> AsyncGenerator[Delta, None]:
        """What goes on to the client of these deltas; close it always.

        `end_choice` is told of choices of which nothing more goes on.
        """
        if self._new_check is None:
            return deltas
        return self._checked(deltas, end_choice, self._new_check)

    async def _checked(
        self,
        deltas: AsyncGenerator[Delta, None],
        end_choice: Callable[[int], None],
        new_check: Callable[[], ChoiceCheck],
    ) -> AsyncGenerator[Delta, None]:
        checks: dict[int, ChoiceCheck] = {}
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    if delta.choice not in checks:
                        checks[delta.choice] = new_check()
                    check = checks[delta.choice]
                    if check.blocked:
                        continue
                    passed = await check.push(delta)
                    if check.blocked:
                        end_choice(delta.choice)
                    for each in passed:
                        yield each
        finally:
            self._count(checks)

    def _count(self, checks: Mapping[int, ChoiceCheck]) -> None:
        for choice, check in checks.items():
            for rule in check.terms.rules if check.terms is not None else ():
                self._metrics.found(Stage.OUTPUT, rule)
                log.info(
                    "request %s, choice %d: %s by rule %s of the answer",
                    self._request_id,
                    choice,
                    rule.action,
                    rule.name,
                )
