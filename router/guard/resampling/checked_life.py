"""Serves a request whose tokens are checked: a first life for all choices, and what follows it.

    first life          all choices, as without checks; its tokens go to each choice's checks
    a draw              a life of one token, under the policy's prompt
    a token is replaced the first life lets the choice go; a life of its own goes on after it

Choices are checked side by side: one that waits for a draw delays no other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from core.clock import Clock
from core.errors import TandemError
from core.request import Pinned, TokenLogprobs
from router.guard.resampling.checked_choice import CheckedChoice
from router.guard.resampling.policy_draws import PolicyDraws
from router.guard.resampling.rules import ResampleRules, compared_sampling
from router.guard.resampling.token_check import CheckOutcome, Token, tokens_of
from router.guard.resampling.token_watch import TokenWatch
from router.life.admitted_request import AdmittedRequest
from router.life.check_timeline import CheckTimeline
from router.life.choice import Choice, Delta
from router.life.request_life import RequestLife
from router.life.timeline import RequestTimeline

BeginLife = Callable[[AdmittedRequest, Sequence[Choice], RequestTimeline], RequestLife]
PlainChoice = Callable[[int, Sequence[int]], Choice]
"""A choice of this number that has emitted these tokens, and looks for no stop strings."""


class CheckedLife:
    """Iterate `deltas` once, and close it (`contextlib.aclosing`)."""

    def __init__(
        self,
        request: AdmittedRequest,
        choices: Sequence[Choice],
        rules: ResampleRules,
        watch: TokenWatch | None,
        encode: Callable[[], Awaitable[tuple[int, ...]]],
        begin: BeginLife,
        plain_choice: PlainChoice,
        timeline: RequestTimeline,
        note: Callable[[CheckTimeline], None],
        clock: Clock,
    ) -> None:
        """`watch` is of an answer without tokens; `encode` gives the prompt under the policy;
        `note` hears of every check."""
        self.request = request
        self.timeline = timeline
        self.choices = tuple(choices)
        self._rules = rules
        self._watch = watch
        self._encode = encode
        self._begin = begin
        self._plain_choice = plain_choice
        self._note = note
        self._clock = clock
        self._error: TandemError | None = None
        self._running: set[RequestLife] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._compared = replace(request, sampling=compared_sampling(request.sampling))
        first = [plain_choice(choice.index, ()) for choice in choices]
        self._first = begin(self._compared, first, timeline)
        self._first_tokens: dict[int, asyncio.Queue[Token]] = {
            choice.index: asyncio.Queue() for choice in first
        }
        self._lives = [self._first]
        """Those that wrote the answer, in order."""

    @property
    def num_tokens_to_compute(self) -> int:
        """Prompt tokens that no worker is thought to have cached; at least one."""
        return self._first.num_tokens_to_compute

    @property
    def num_output_tokens(self) -> int:
        """That stand."""
        return sum(len(choice.token_ids) for choice in self.choices)

    @property
    def num_cached_tokens(self) -> int | None:
        return self._first.num_cached_tokens

    @property
    def pinned(self) -> Pinned | None:
        return self._first.pinned

    @property
    def num_attempts(self) -> int:
        """Draws don't count."""
        return sum(life.num_attempts for life in self._lives)

    @property
    def num_retries(self) -> int:
        return sum(life.num_retries for life in self._lives)

    @property
    def prefill_worker(self) -> str:
        return self._first.prefill_worker

    @property
    def decode_worker(self) -> str:
        workers = [life.decode_worker for life in self._lives if life.decode_worker]
        return workers[-1] if workers else ""

    @property
    def prompt_logprobs(self) -> Mapping[int, TokenLogprobs]:
        return self._first.prompt_logprobs

    @property
    def move_outcomes(self) -> Mapping[str, int]:
        total: Counter[str] = Counter()
        for life in self._lives:
            total.update(life.move_outcomes)
        return total

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """What each choice gains, as its tokens turn out to stand. Raises what a life raises."""
        told: asyncio.Queue[Delta | asyncio.Task[None]] = asyncio.Queue()
        first = asyncio.create_task(self._feed())
        for choice, checked in zip(self.choices, self._checked(), strict=True):
            deltas = checked.deltas(self._of_first(choice.index))
            self._tasks[choice.index] = asyncio.create_task(_tell(deltas, told.put_nowait))
        tasks = (first, *self._tasks.values())
        try:
            for task in tasks:
                task.add_done_callback(told.put_nowait)
            num_open = len(self._tasks)
            while num_open:
                # Bounded by the request's deadline, which ends every life
                gained = await told.get()
                if self._error is not None:
                    raise self._error
                if not isinstance(gained, asyncio.Task):
                    yield gained
                    continue
                if not gained.cancelled():
                    gained.result()
                num_open -= gained is not first
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.clear()
            self.timeline.finished = self._clock.now()

    def end(self, error: TandemError) -> None:
        """The house ends the request: `deltas` raises this soon."""
        self._error = error
        for life in tuple(self._running):
            life.end(error)

    def end_choice(self, index: int) -> None:
        """The house lets this choice go no further: its work is cancelled, others go on."""
        self.choices[index].cancel()
        if index in self._tasks:
            self._tasks[index].cancel()

    def _checked(self) -> list[CheckedChoice]:
        """The choices with their checks. Not kept: they know this life."""
        rules, watch, clock = self._rules, self._watch, self._clock
        draws = PolicyDraws(self.request, rules, self._encode, self._draw, clock)
        told = self.request.sampling.logprobs
        return [
            CheckedChoice(choice, rules, watch, draws, self._after, told, self._noted, clock)
            for choice in self.choices
        ]

    async def _feed(self) -> None:
        """What the first life tells, to each choice's checks."""
        async with aclosing(self._served(self._first)) as deltas:
            async for delta in deltas:
                for token in tokens_of(delta):
                    self._first_tokens[delta.choice].put_nowait(token)

    async def _of_first(self, index: int) -> AsyncGenerator[Token, None]:
        queue = self._first_tokens[index]
        try:
            while True:
                yield await queue.get()
        finally:
            self._first.end_choice(index)

    async def _after(self, index: int, emitted: Sequence[int]) -> AsyncGenerator[Token, None]:
        """A life of the choice's own, from a token on that the first one did not write."""
        sampling = replace(self._compared.sampling, prompt_logprobs=None)
        request = replace(self._compared, n=1, sampling=sampling, pins=None)
        life = self._begin(request, [self._plain_choice(index, emitted)], self.timeline)
        self._lives.append(life)
        async with aclosing(self._served(life)) as deltas:
            async for delta in deltas:
                for token in tokens_of(delta):
                    yield token

    def _draw(
        self, request: AdmittedRequest, index: int, emitted: Sequence[int]
    ) -> AsyncGenerator[Delta, None]:
        timeline = RequestTimeline(self._clock.now())
        life = self._begin(request, [self._plain_choice(index, emitted)], timeline)
        return self._served(life)

    async def _served(self, life: RequestLife) -> AsyncGenerator[Delta, None]:
        """The life's deltas, as long as the house lets the request live."""
        if self._error is not None:
            raise self._error
        self._running.add(life)
        try:
            async with aclosing(life.deltas()) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._running.discard(life)

    def _noted(self, check: CheckTimeline) -> None:
        self._note(check)
        if check.outcome != CheckOutcome.EXHAUSTED:
            self.timeline.checks.append(check)


async def _tell(deltas: AsyncGenerator[Delta, None], tell: Callable[[Delta], None]) -> None:
    async with aclosing(deltas):
        async for delta in deltas:
            tell(delta)
