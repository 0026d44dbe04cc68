"""The guard at the door: no prompt is tokenised, and no answer goes out, that it doesn't know of.

admit     policy of the tenant > scan (long prompts in a thread) > outside service > prompt, or 400
life      suspicious tokens are compared, and some drawn again, where the policy wants it
deltas    each choice through its filter > outside service, window by window > client
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from core.errors import ContentPolicyError, ContextLengthError
from router.guard.compiled_policy import CompiledPolicy
from router.guard.guarded_request import ChoiceCheck, GuardedRequest
from router.guard.metrics import GuardMetrics
from router.guard.output_filter import OutputFilter
from router.guard.policies_in_use import PoliciesInUse
from router.guard.policy import Action, Stage
from router.guard.prompt_check import check_prompt
from router.guard.prompt_texts import RoleText, texts_of, with_texts
from router.guard.resampling.token_checks import TokenChecks
from router.guard.service import GuardService, Question
from router.guard.service_window import ServiceWindow
from router.guard.verdict import Redaction, redacted
from router.request_spec import ChatPrompt, RequestSpec
from text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

INLINE_CHARACTERS = 4_000
"""Below this a scan (0.1 us a character) is about as short as the hop to a thread and back."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """What is asked of the outside service, if there is one, and how long a text may be."""

    service_stages: frozenset[Stage]
    service_window: int
    """Characters of an answer that the service sees at once."""
    max_characters: int
    """Of one text: no prompt with a longer one fits into the model."""


class Guard:
    """Shared by all requests. Close it when done."""

    def __init__(
        self,
        policies: PoliciesInUse,
        service: GuardService | None,
        metrics: GuardMetrics,
        tokenizer: Tokenizer,
        settings: GuardSettings,
    ) -> None:
        self._policies = policies
        self._service = service
        self._metrics = metrics
        self._tokenizer = tokenizer
        self._settings = settings
        # One: a scan holds Python's lock, so that more would not be faster.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="guard")

    async def admit(self, spec: RequestSpec, request_id: str, tenant: str) -> GuardedRequest:
        """The request with the prompt that goes on.

        Raises ContentPolicyError, ContextLengthError for a text that no prompt has room for,
        BadRequestError for what the policy can't be kept in, and UnavailableError where the outside
        service must answer and doesn't.
        """
        policy = (await self._policies.current()).policy_of(tenant)
        checks = self._token_checks(policy)
        if checks is not None:
            checks.admit(spec)
        texts = await self._texts(spec)
        passed = await self._scanned(policy, spec, request_id, texts)
        passed = await self._asked(spec, request_id, tenant, passed)
        prompt = spec.prompt
        if passed != [item.text for item in texts]:
            if isinstance(prompt, tuple):
                # Other token ids would not be what the client rendered.
                raise _refused(spec)
            prompt = with_texts(prompt, passed)
        new_check = self._new_check(policy, request_id, tenant)
        return GuardedRequest(request_id, prompt, new_check, checks, self._metrics)

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._service is not None:
            await self._service.close()

    async def _texts(self, spec: RequestSpec) -> list[RoleText]:
        prompt = spec.prompt
        if isinstance(prompt, ChatPrompt | str):
            texts = texts_of(prompt)
            longest = max((len(item.text) for item in texts), default=0)
            self._check_length(spec, longest, "characters")
            return texts
        self._check_length(spec, len(prompt), "tokens")
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(self._thread, self._tokenizer.decode, prompt)
        return texts_of(text)

    def _check_length(self, spec: RequestSpec, length: int, unit: str) -> None:
        if length > self._settings.max_characters:
            raise ContextLengthError(
                f"a text of {length} {unit} is longer than any prompt can be",
                param=spec.prompt_param,
            )

    async def _scanned(
        self,
        policy: CompiledPolicy,
        spec: RequestSpec,
        request_id: str,
        texts: Sequence[RoleText],
    ) -> list[str]:
        began = time.perf_counter()
        if sum(len(item.text) for item in texts) <= INLINE_CHARACTERS:
            verdict = check_prompt(policy.prompts, texts)
        else:
            loop = asyncio.get_running_loop()
            verdict = await loop.run_in_executor(self._thread, check_prompt, policy.prompts, texts)
        self._metrics.checked(time.perf_counter() - began)
        for rule in verdict.rules:
            self._metrics.found(Stage.INPUT, rule)
            log.info("request %s: %s by rule %s of the prompt", request_id, rule.action, rule.name)
        if verdict.blocked:
            raise _refused(spec)
        return list(verdict.texts)

    async def _asked(
        self, spec: RequestSpec, request_id: str, tenant: str, texts: list[str]
    ) -> list[str]:
        if self._service is None or Stage.INPUT not in self._settings.service_stages:
            return texts
        question = Question(Stage.INPUT, tenant, request_id, "\n".join(texts))
        opinion = await self._service.ask(question)
        if opinion.action is Action.BLOCK:
            log.info("request %s: blocked by the outside service", request_id)
            raise _refused(spec)
        return _redacted_each(texts, opinion.redactions)

    def _token_checks(self, policy: CompiledPolicy) -> TokenChecks | None:
        rules = policy.resampling
        return None if rules is None else TokenChecks(rules, policy.watched, self._metrics)

    def _new_check(
        self, policy: CompiledPolicy, request_id: str, tenant: str
    ) -> Callable[[], ChoiceCheck] | None:
        terms = policy.answers
        service = self._service if Stage.OUTPUT in self._settings.service_stages else None
        if not terms and service is None:
            return None

        def new_check() -> ChoiceCheck:
            size = self._settings.service_window
            return ChoiceCheck(
                OutputFilter(terms) if terms else None,
                ServiceWindow(service, size=size, tenant=tenant, request_id=request_id)
                if service is not None
                else None,
            )

        return new_check


def _refused(spec: RequestSpec) -> ContentPolicyError:
    return ContentPolicyError(
        "the content policy does not allow this prompt", param=spec.prompt_param
    )


def _redacted_each(texts: list[str], redactions: Sequence[Redaction]) -> list[str]:
    """Redactions of the texts joined by line ends, applied to each text."""
    found, begin = [], 0
    for text in texts:
        end = begin + len(text)
        parts = [
            Redaction(max(r.start, begin) - begin, min(r.end, end) - begin, r.replacement)
            for r in redactions
            if r.start < end and r.end > begin
        ]
        found.append(redacted(text, parts))
        begin = end + 1
    return found
