"""What a policy with a prompt asks of a request: that its answer's tokens are checked."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

from core.clock import Clock
from core.errors import BadRequestError
from router.guard.metrics import GuardMetrics
from router.guard.resampling.checked_life import BeginLife, CheckedLife
from router.guard.resampling.policy_prompt import policy_token_ids
from router.guard.resampling.rules import ResampleRules
from router.guard.resampling.token_check import CheckOutcome
from router.guard.resampling.token_watch import new_watch
from router.guard.term_stream import Lexicon
from router.life.admitted_request import AdmittedRequest
from router.life.check_timeline import CheckTimeline
from router.life.choice import Choice
from router.life.timeline import RequestTimeline
from router.request_spec import RequestSpec
from router.texts import Texts

log = logging.getLogger(__name__)


class TokenChecks:
    """Of one policy; shared by its requests."""

    def __init__(self, rules: ResampleRules, terms: Lexicon, metrics: GuardMetrics) -> None:
        """A token that begins one of `terms` is suspicious."""
        self._rules = rules
        self._terms = terms
        self._metrics = metrics

    def admit(self, spec: RequestSpec) -> None:
        """Raises BadRequestError for what can't be checked."""
        if spec.beams is not None:
            raise BadRequestError(
                "use_beam_search draws no tokens, and this content policy draws some again",
                param="use_beam_search",
            )

    def life(
        self,
        request: AdmittedRequest,
        choices: Sequence[Choice],
        begin: BeginLife,
        timeline: RequestTimeline,
        spec: RequestSpec,
        texts: Texts,
        clock: Clock,
    ) -> CheckedLife:
        """Serves the request. `spec` has the prompt as it was tokenised."""
        encode = functools.partial(
            policy_token_ids, texts, spec, request.token_ids, self._rules.prompt
        )
        note = functools.partial(self._noted, request.request_id)
        watch = new_watch(texts.tokenizer, self._terms)
        return CheckedLife(
            request,
            choices,
            self._rules,
            watch,
            encode,
            begin,
            texts.plain_choice,
            timeline,
            note,
            clock,
        )

    def _noted(self, request_id: str, check: CheckTimeline) -> None:
        self._metrics.token_checked(self._rules.policy, check)
        if check.outcome in (CheckOutcome.PASSED, CheckOutcome.SAME):
            return
        log.info(
            "request %s, choice %d, token %d: %s under policy %s",
            request_id,
            check.choice,
            check.position,
            check.outcome,
            self._rules.policy,
        )
