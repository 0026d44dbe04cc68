"""One request from the door's view: admitted, tokenised, lived, accounted.

Nothing happens before the first `anext` of `Generation.deltas`, so everything that can be refused
is refused before a first byte is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from core.errors import DeadlineError, TandemError
from core.request import SamplingParams
from router.door import Door
from router.identifiers import new_request_id, new_seed
from router.life.admitted_request import AdmittedRequest
from router.life.choice import Delta
from router.life.request_life import RequestLife
from router.life.timeline import RequestTimeline, RequestTimings
from router.limits import check_token_ids, resolve_max_tokens
from router.observe.origin import current_origin
from router.observe.token_meter import TokenMeter
from router.request_spec import RequestSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request, as they are billed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class ServedBy:
    """Who served a request: the worker of its first token, and the last that decoded it."""

    prefill_worker: str
    decode_worker: str
    num_attempts: int


class Generation:
    """One request from the door's view. Its results are complete once `deltas` has ended."""

    def __init__(self, door: Door, spec: RequestSpec, received: float) -> None:
        self.request_id = new_request_id()
        self.spec = spec
        self.seed = 0
        self.prompt_token_ids: tuple[int, ...] = ()
        self._door = door
        self._timeline = RequestTimeline(received)
        self._record = door.observer.begin(self.request_id, spec, current_origin(), self._timeline)
        self._life: RequestLife | None = None
        self._meter: TokenMeter
        self._last_token: dict[int, float] = {}

    @property
    def usage(self) -> Usage:
        if self._life is None:
            return Usage(0, 0, 0)
        return Usage(
            prompt_tokens=len(self.prompt_token_ids),
            completion_tokens=self._life.num_output_tokens,
            cached_tokens=self._life.num_cached_tokens or 0,
        )

    @property
    def timings(self) -> RequestTimings:
        return self._timeline.timings()

    @property
    def served_by(self) -> ServedBy:
        assert self._life is not None, "asked before the first delta"
        life = self._life
        return ServedBy(life.prefill_worker, life.decode_worker, life.num_attempts)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """What each choice gains, until all have ended. Raises TandemError; close it always."""
        try:
            self._door.enter(self.spec.model)
        except TandemError as error:
            self._door.observer.refused(self._record, error)
            raise
        self._door.observer.entered(self._record)
        outcome = "internal_error"
        try:
            async with aclosing(self._serve()) as deltas:
                async for delta in deltas:
                    yield delta
            outcome = "finished"
        except TandemError as error:
            outcome = error.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        finally:
            self._door.observer.left(self._record, outcome, self._life)
            self._door.leave(self._life)

    async def _serve(self) -> AsyncGenerator[Delta, None]:
        request = await self._admit()
        door = self._door
        self._life = RequestLife(
            request,
            door.texts.choices(request.n, request.stop, request.sampling.min_tokens),
            door.fleet,
            self._timeline,
            door.settings.life,
            door.clock,
        )
        door.begin(self._life)
        self._meter = door.metrics.meter(self._record.priority_class)
        async with aclosing(self._life.deltas()) as deltas:
            async for delta in deltas:
                self._note(delta)
                yield delta

    async def _admit(self) -> AdmittedRequest:
        """The checked and tokenised request, within its deadline."""
        spec, clock = self.spec, self._door.clock
        timeout_s = self._door.settings.request_timeout_s
        if spec.timeout_s is not None:
            timeout_s = min(timeout_s, spec.timeout_s)
        deadline = self._timeline.received + timeout_s
        self._timeline.tokenize_began = clock.now()
        try:
            async with asyncio.timeout(max(0.0, deadline - clock.now())):
                self.prompt_token_ids = await self._door.texts.encode(spec.prompt)
        except TimeoutError:
            raise DeadlineError("the request's deadline passed while it was tokenised") from None
        self._timeline.tokenized = clock.now()
        if self._door.settings.log_prompts:
            log.info("request %s asks: %s", self.request_id, spec.prompt)
        self.seed = new_seed() if spec.seed is None else spec.seed % 2**64
        return AdmittedRequest(
            request_id=self.request_id,
            model=self._door.settings.model,
            token_ids=self.prompt_token_ids,
            n=spec.n,
            sampling=self._sampling(),
            stop=spec.stop,
            deadline=deadline,
            priority=spec.priority,
            cache_salt=spec.cache_salt,
            tenant=spec.tenant,
            trace=self._record.trace,
        )

    def _sampling(self) -> SamplingParams:
        spec, limit = self.spec, self._door.settings.max_model_len
        check_token_ids(spec, self.prompt_token_ids, self._door.settings.vocab_size)
        return SamplingParams(
            max_tokens=resolve_max_tokens(spec, len(self.prompt_token_ids), limit),
            temperature=spec.temperature,
            top_k=spec.top_k,
            top_p=spec.top_p,
            min_p=spec.min_p,
            presence_penalty=spec.presence_penalty,
            frequency_penalty=spec.frequency_penalty,
            repetition_penalty=spec.repetition_penalty,
            logit_bias=tuple(sorted(spec.logit_bias.items())),
            logprobs=spec.logprobs,
            seed=self.seed,
            min_tokens=spec.min_tokens,
            stop_token_ids=spec.stop_token_ids,
            ignore_eos=spec.ignore_eos,
        )

    def _note(self, delta: Delta) -> None:
        now = self._door.clock.now()
        last = self._last_token.get(delta.choice)
        self._last_token[delta.choice] = now
        since_last_s = None if last is None else now - last
        self._meter.tokens(len(delta.token_ids), since_last_s)
