"""Draws tokens of a choice as if the policy's prompt had come before the conversation.

Each is an ordinary request of one token, after prompt and emitted tokens: any prefill worker serves
it, its prefix cache makes all but the first one cheap, and a lost worker costs a retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from core.clock import Clock
from core.errors import DeadlineError, TandemError
from core.request import FinishReason
from router.guard.resampling.rules import ResampleRules, draw_counter, draw_sampling
from router.guard.resampling.token_check import CheckOutcome, Token, tokens_of
from router.life.admitted_request import AdmittedRequest
from router.life.choice import Delta

Serve = Callable[[AdmittedRequest, int, Sequence[int]], AsyncGenerator[Delta, None]]
"""Serves a request of one choice of this number, which has emitted these tokens.

Raises TandemError; close it always."""


class NoDrawError(Exception):
    """There is no token to compare with; `outcome` says why."""

    def __init__(self, outcome: CheckOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class PolicyDraws:
    """Of one request."""

    def __init__(
        self,
        request: AdmittedRequest,
        rules: ResampleRules,
        encode: Callable[[], Awaitable[tuple[int, ...]]],
        serve: Serve,
        clock: Clock,
    ) -> None:
        """`encode` gives the prompt under the policy; asked when it is first needed."""
        self._request = request
        self._rules = rules
        self._encode = encode
        self._serve = serve
        self._clock = clock
        self._token_ids: tuple[int, ...] | None = None
        self._is_cached = False
        self._first = asyncio.Lock()

    async def draw(self, choice: int, emitted: Sequence[int], number: int) -> Token:
        """The `number`th other token of this choice in the place after `emitted`.

        Raises NoDrawError, and DeadlineError where the request itself has no time left.
        """
        try:
            async with asyncio.timeout(self._rules.timeout_s):
                return await self._in_turn(choice, emitted, number)
        except TimeoutError:
            outcome = CheckOutcome.LATE
        except TandemError as error:
            late = isinstance(error, DeadlineError)
            outcome = CheckOutcome.LATE if late else CheckOutcome.FAILED
        if self._clock.now() >= self._request.deadline:
            raise DeadlineError("the request's deadline passed")
        raise NoDrawError(outcome)

    async def _in_turn(self, choice: int, emitted: Sequence[int], number: int) -> Token:
        """The prompt under the policy is computed by one draw; others wait, and find it cached."""
        if not self._is_cached:
            async with self._first:
                if not self._is_cached:
                    token = await self._drawn(choice, emitted, number)
                    self._is_cached = True
                    return token
        return await self._drawn(choice, emitted, number)

    async def _drawn(self, choice: int, emitted: Sequence[int], number: int) -> Token:
        if self._token_ids is None:
            self._token_ids = await self._encode()
        position, sampling = len(emitted), self._request.sampling
        request = replace(
            self._request,
            token_ids=self._token_ids,
            n=1,
            sampling=draw_sampling(sampling, self._rules, position=position, number=number),
            deadline=min(self._request.deadline, self._clock.now() + self._rules.timeout_s),
            pins=None,
            trace=None,
        )
        served = self._serve(request, draw_counter(choice, number), emitted)
        async with aclosing(served) as deltas:
            tokens = [token async for delta in deltas for token in tokens_of(delta)]
        (token,) = tokens
        if token.finish_reason is FinishReason.LENGTH and position + 1 < sampling.max_tokens:
            return token._replace(finish_reason=None)
        return token
