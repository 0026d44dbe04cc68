"""The door of the house: lets a request in, makes its life, and notes how it went.

    check the model > take a place > tokenise > check against the model's limits > live > leave

HTTP and gRPC are two handles on this one door. Nothing happens before the first `anext` of
`Generation.deltas`, so everything that can be refused is refused before a first byte is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from core.clock import Clock
from core.errors import (
    BadRequestError,
    ContextLengthError,
    DeadlineError,
    ModelNotFoundError,
    TandemError,
)
from core.request import SamplingParams
from router.admission import Admission
from router.admitted_request import AdmittedRequest
from router.choice import Delta
from router.fleet import Fleet
from router.identifiers import new_request_id, new_seed
from router.metrics import RouterMetrics
from router.request_life import LifeSettings, RequestLife
from router.request_spec import RequestSpec
from router.texts import Texts
from router.timeline import RequestTimeline, RequestTimings


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """What the model and the operator allow."""

    model: str
    max_model_len: int
    vocab_size: int
    request_timeout_s: float
    life: LifeSettings


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


class Door:
    """Everything a request needs, shared by all of them."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        texts: Texts,
        admission: Admission,
        metrics: RouterMetrics,
        settings: DoorSettings,
        clock: Clock,
    ) -> None:
        self.fleet = fleet
        self.texts = texts
        self.admission = admission
        self.metrics = metrics
        self.settings = settings
        self.clock = clock
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, spec: RequestSpec, received: float) -> Generation:
        """A request that begins when its deltas are first asked for."""
        return Generation(self, spec, received)

    def enter(self) -> None:
        """Takes a place, or raises what `Admission.enter` raises."""
        self.admission.enter()
        self.metrics.started()
        self._idle.clear()

    def leave(self, outcome: str, life: RequestLife | None) -> None:
        self.admission.leave()
        self.metrics.finished(outcome, life)
        if self.admission.num_running == 0:
            self._idle.set()

    async def drained(self, timeout_s: float) -> bool:
        """Whether the house became empty in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class Generation:
    """One request from the door's view. Its results are complete once `deltas` has ended."""

    def __init__(self, door: Door, spec: RequestSpec, received: float) -> None:
        self.request_id = new_request_id()
        self.spec = spec
        self.seed = 0
        self.prompt_token_ids: tuple[int, ...] = ()
        self._door = door
        self._timeline = RequestTimeline(received)
        self._life: RequestLife | None = None
        self._last_token: dict[int, float] = {}

    @property
    def usage(self) -> Usage:
        if self._life is None:
            return Usage(0, 0, 0)
        return Usage(
            prompt_tokens=len(self.prompt_token_ids),
            completion_tokens=self._life.num_output_tokens,
            cached_tokens=self._life.num_cached_tokens,
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
        check_model(self.spec.model, self._door.settings.model)
        self._door.enter()
        outcome = "cancelled"
        try:
            async with aclosing(self._serve()) as deltas:
                async for delta in deltas:
                    yield delta
            outcome = "finished"
        except TandemError as error:
            outcome = error.code
            raise
        finally:
            self._door.leave(outcome, self._life)

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
        )

    def _sampling(self) -> SamplingParams:
        spec, settings = self.spec, self._door.settings
        check_token_ids(spec, self.prompt_token_ids, settings.vocab_size)
        return SamplingParams(
            max_tokens=resolve_max_tokens(spec, len(self.prompt_token_ids), settings),
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
        self._door.metrics.tokens(len(delta.token_ids), since_last_s)


def check_model(asked: str, served: str) -> None:
    """Raises ModelNotFoundError unless the asked model is the served one."""
    if asked != served:
        raise ModelNotFoundError(f"the model '{asked}' is not served here", param="model")


def check_token_ids(spec: RequestSpec, prompt: tuple[int, ...], vocab_size: int) -> None:
    """Raises BadRequestError for an empty prompt and for ids outside the vocabulary."""
    if not prompt:
        raise BadRequestError("the prompt has no tokens", param=spec.prompt_param)
    for name, ids in (
        (spec.prompt_param, prompt),
        ("stop_token_ids", spec.stop_token_ids),
        ("logit_bias", tuple(spec.logit_bias)),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            raise BadRequestError(
                f"{name} holds a token id outside 0 to {vocab_size - 1}", param=name
            )


def resolve_max_tokens(spec: RequestSpec, num_prompt_tokens: int, settings: DoorSettings) -> int:
    """The output limit of each choice: the client's, or what the model has room for.

    Raises ContextLengthError when prompt and output together don't fit, BadRequestError when
    `min_tokens` doesn't.
    """
    room = settings.max_model_len - num_prompt_tokens
    wanted = 1 if spec.max_tokens is None else spec.max_tokens
    if wanted > room:
        asked = f" and max_tokens {spec.max_tokens}" if spec.max_tokens is not None else ""
        raise ContextLengthError(
            f"the model's limit is {settings.max_model_len} tokens; the prompt has "
            f"{num_prompt_tokens}{asked}",
            param=spec.prompt_param,
        )
    max_tokens = room if spec.max_tokens is None else spec.max_tokens
    if spec.min_tokens > max_tokens:
        raise BadRequestError(
            f"min_tokens is {spec.min_tokens}, but only {max_tokens} fit", param="min_tokens"
        )
    return max_tokens
