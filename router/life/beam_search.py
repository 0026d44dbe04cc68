"""Serves a request by beam search: every step asks for one token after each beam.

Each of these is an ordinary request of one token, whose prompt ends with the beam: prefix caches
make it cheap, and a lost worker costs that token only. What the client hears, it hears at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from core.clock import Clock
from core.errors import TandemError
from core.request import FinishReason, Pinned, TokenEvent, TokenLogprobs
from router.life.admitted_request import AdmittedRequest
from router.life.beams import Beam, BeamRules, Beams
from router.life.choice import Choice, Delta, joined
from router.life.request_life import RequestLife
from router.life.timeline import RequestTimeline

BeginLife = Callable[[AdmittedRequest, RequestTimeline], RequestLife]
"""A life of one choice."""


class BeamSearch:
    """A life of many small ones. Iterate `deltas` once, and close it (`contextlib.aclosing`)."""

    def __init__(
        self,
        request: AdmittedRequest,
        choices: Sequence[Choice],
        rules: BeamRules,
        begin: BeginLife,
        timeline: RequestTimeline,
        clock: Clock,
    ) -> None:
        """The best beams become `choices`; `request.sampling.logprobs` is what they are told of."""
        self.request = request
        self.timeline = timeline
        self.num_output_tokens = 0
        self.num_attempts = 0
        self.num_retries = 0
        self.decode_worker = ""
        self.choices = choices
        self._beams = Beams(rules)
        self._begin = begin
        self._clock = clock
        self._error: TandemError | None = None
        self._running: set[RequestLife] = set()
        self._first: RequestLife | None = None
        """Computed the prompt."""

    @property
    def num_tokens_to_compute(self) -> int:
        """Of the prompt, which the first of the small requests computes."""
        return len(self.request.token_ids)

    @property
    def prompt_logprobs(self) -> Mapping[int, TokenLogprobs]:
        return self._first.prompt_logprobs if self._first else {}

    @property
    def num_cached_tokens(self) -> int | None:
        return self._first.num_cached_tokens if self._first else None

    @property
    def pinned(self) -> Pinned | None:
        return self._first.pinned if self._first else None

    @property
    def prefill_worker(self) -> str:
        return self._first.prefill_worker if self._first else ""

    @property
    def move_outcomes(self) -> Mapping[str, int]:
        """One token is told before anything could move."""
        return {}

    def end(self, error: TandemError) -> None:
        """The house ends the request: `deltas` raises this soon."""
        self._error = error
        for life in tuple(self._running):
            life.end(error)

    def end_choice(self, index: int) -> None:
        """Nothing: a beam is told when the search is over, and has no work left then."""

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """The best beams, each whole. Raises what a small request raises."""
        while not self._beams.done:
            if self._error is not None:
                raise self._error
            self._beams.advance(await self._step())
        now = self._clock.now()
        self.timeline.first_token = self.timeline.finished = now
        for choice, beam in zip(self.choices, self._beams.best(), strict=False):
            self.num_output_tokens += len(beam.token_ids)
            if delta := self._told(choice, beam):
                yield delta

    async def _step(self) -> list[TokenLogprobs]:
        """The best next tokens of every active beam; the first error ends all."""
        tasks = [asyncio.create_task(self._next(beam)) for beam in self._beams.active]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _next(self, beam: Beam) -> TokenLogprobs:
        timeline = RequestTimeline(self._clock.now())
        life = self._begin(self._after(beam), timeline)
        self._first = self._first or life
        self._running.add(life)
        try:
            async with aclosing(life.deltas()) as deltas:
                found = [logprobs async for delta in deltas for logprobs in delta.logprobs]
        finally:
            self._running.discard(life)
            self.num_attempts += life.num_attempts
            self.num_retries += life.num_retries
            self.decode_worker = life.decode_worker
        if not beam.token_ids:
            self.timeline.sent, self.timeline.started = timeline.sent, timeline.started
        return found[0]

    def _after(self, beam: Beam) -> AdmittedRequest:
        sampling = self.request.sampling
        return replace(
            self.request,
            token_ids=(*self.request.token_ids, *beam.token_ids),
            n=1,
            pins=None if beam.token_ids else self.request.pins,
            sampling=replace(
                sampling,
                max_tokens=1,
                temperature=0.0,
                repetition_penalty=1.0,
                logprobs=max(self._beams.num_candidates, sampling.logprobs or 0),
                ignore_eos=True,
                prompt_logprobs=None if beam.token_ids else sampling.prompt_logprobs,
            ),
        )

    def _told(self, choice: Choice, beam: Beam) -> Delta | None:
        choice.begin_attempt()
        wanted, gained = self.request.sampling.logprobs, []
        last = len(beam.token_ids) - 1
        reason = FinishReason.STOP if beam.ended else FinishReason.LENGTH
        for position, (token_id, logprobs) in enumerate(
            zip(beam.token_ids, beam.logprobs, strict=True)
        ):
            told = None
            if wanted is not None:
                told = TokenLogprobs(logprobs.logprob, logprobs.top[:wanted])
            end = reason if position == last else None
            event = TokenEvent("", choice.index, position, token_id, told, end)
            if delta := choice.accept(event):
                gained.append(delta)
        return joined(gained)
