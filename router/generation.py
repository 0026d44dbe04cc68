"""One request from the door's view: admitted, tokenised, lived, accounted.

Nothing happens before the first `anext` of `Generation.deltas`, so everything that can be refused
is refused before a first byte is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from core.errors import CancelledRequestError, DeadlineError, TandemError
from core.request import SamplingParams, TokenLogprobs
from router.door import Door
from router.guard.guarded_request import GuardedRequest
from router.identifiers import new_request_id, new_seed
from router.life.admitted_request import AdmittedRequest
from router.life.beam_search import BeamSearch
from router.life.beams import BeamRules
from router.life.best import best_choices, only_ends
from router.life.choice import Choice, Delta
from router.life.request_life import RequestLife
from router.life.served_life import ServedLife
from router.life.timeline import RequestTimeline, RequestTimings
from router.limits import (
    check_something_is_left,
    check_token_ids,
    resolve_max_tokens,
    truncated,
)
from router.message.reader import MessageReader
from router.message.thoughts import Thinking, ThoughtSplitter, thinking_after
from router.observe.origin import current_origin
from router.observe.token_meter import TokenMeter
from router.request_spec import ChatPrompt, RequestSpec
from router.structure.answer_grammar import Wish, needs_grammar
from router.tenants.call import current_call
from router.visit import Served, Visit

log = logging.getLogger(__name__)

T = TypeVar("T")


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

    def __init__(
        self,
        door: Door,
        spec: RequestSpec,
        received: float,
        *,
        client_id: str = "",
        part_of: Generation | None = None,
    ) -> None:
        """`client_id` is the client's own name for it, and `part_of` the first of several prompts
        of one request: by both it can be cancelled."""
        self.request_id = new_request_id()
        self.spec = spec
        self.seed = 0
        self.prompt_token_ids: tuple[int, ...] = ()
        self._door = door
        self._call = current_call()
        self._timeline = RequestTimeline(received)
        self._record = door.observer.begin(
            self.request_id, spec, current_origin(), self._timeline, self._call
        )
        self._meter: TokenMeter
        self._guarded: GuardedRequest | None = None
        self._visit: Visit | None = None
        self._life: ServedLife | None = None
        own_id = self.request_id if part_of is None else part_of.request_id
        self._names = (self._call.tenant, own_id, client_id)
        self._cancelled: CancelledRequestError | None = None
        self._last_token: dict[int, float] = {}
        self._is_truncated = False

    @property
    def usage(self) -> Usage:
        if self._life is None:
            return Usage(0, 0, 0)
        return Usage(
            prompt_tokens=len(self.prompt_token_ids),
            completion_tokens=self._life.num_output_tokens if self.spec.max_tokens != 0 else 0,
            cached_tokens=self._life.num_cached_tokens or 0,
        )

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """One for each token of the prompt, but none for the first, which nothing predicts. Known
        with the first delta; None if nobody asked."""
        if self.spec.prompt_logprobs is None or self._life is None:
            return None
        known = self._life.prompt_logprobs
        return [None, *(known[i] for i in range(1, len(self.prompt_token_ids)))]

    @property
    def echo_text(self) -> str:
        """What comes before each choice's own text; empty unless the client asked."""
        if not self.spec.echo:
            return ""
        prompt = self.spec.prompt if self._guarded is None else self._guarded.prompt
        if isinstance(prompt, ChatPrompt):
            last = prompt.messages[-1]
            return str(last.get("content")) if last.get("role") == "assistant" else ""
        if isinstance(prompt, str) and not self._is_truncated:
            return prompt
        skip = self.spec.skip_special_tokens
        return self._door.texts.tokenizer.decode(self.prompt_token_ids, skip)

    @property
    def timings(self) -> RequestTimings:
        return self._timeline.timings()

    @property
    def served_by(self) -> ServedBy:
        assert self._life is not None, "asked before the first delta"
        life = self._life
        return ServedBy(life.prefill_worker, life.decode_worker, life.num_attempts)

    def reader(self) -> MessageReader | None:
        """Reads a choice of a chat as a message; None where its text is all there is to it.

        Not before the first delta.
        """
        dialect, tooling = self._door.texts.dialect, self.spec.tooling
        if not isinstance(self.spec.prompt, ChatPrompt):
            return None
        splitter = None
        if dialect.thinks:
            splitter = ThoughtSplitter(self._thinking(self.prompt_token_ids))
        if tooling is None or dialect.tools is None:
            return None if splitter is None else MessageReader(splitter, None, new_request_id)
        parser = dialect.tools.parser(tooling.names)
        new_id = dialect.tools.new_id
        return MessageReader(splitter, parser, new_id, parallel=tooling.parallel)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """What each choice gains, until all have ended. Raises TandemError; close it always."""
        try:
            self._visit = visit = self._door.enter(self.spec.model, self._call)
        except TandemError as error:
            self._door.observer.refused(self._record, error)
            raise
        self._door.running.add(self, *self._names)
        self._door.observer.entered(self._record)
        outcome = "internal_error"
        try:
            async with aclosing(self._serve(visit)) as deltas:
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
            self._door.running.remove(self, *self._names)
            usage = self.usage
            served = Served(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
            self._door.observer.left(self._record, outcome, self._life)
            self._door.leave(outcome, self._life, visit, served)

    def cancel(self) -> None:
        """`deltas` raises CancelledRequestError soon."""
        self._cancelled = CancelledRequestError("the request was cancelled")
        if self._life is not None:
            self._life.end(self._cancelled)
        if self._visit is not None:
            self._visit.end(self._cancelled)

    async def _serve(self, visit: Visit) -> AsyncGenerator[Delta, None]:
        request = await self._admit(visit)
        if self._cancelled is not None:
            raise self._cancelled
        door = self._door
        self._life = self._begin(request)
        door.begin(self._life)
        await visit.turn(self._life)
        self._meter = door.metrics.meter(self._record.priority_class)
        told = self._told(self._life)
        if self._guarded is not None:
            told = self._guarded.passed(told, self._life.end_choice)
        async with aclosing(told) as deltas:
            async for delta in deltas:
                self._note(delta)
                visit.gained(len(delta.token_ids))
                yield delta

    def _begin(self, request: AdmittedRequest) -> ServedLife:
        spec, door = self.spec, self._door
        choices = door.texts.choices(spec)
        if spec.beams is None:
            timeline = self._timeline
            if self._guarded is None:
                return self._life_of(request, choices, timeline)
            return self._guarded.life(
                request, choices, self._life_of, timeline, spec, door.texts, door.clock
            )
        tokenizer = door.texts.tokenizer
        rules = BeamRules(
            width=spec.num_choices,
            max_tokens=request.sampling.max_tokens,
            num_prompt_tokens=len(request.token_ids),
            end_token_ids=frozenset(() if spec.ignore_eos else tokenizer.eos_token_ids),
            length_penalty=spec.beams.length_penalty,
            early_stopping=spec.beams.early_stopping,
        )

        def begin(small: AdmittedRequest, timeline: RequestTimeline) -> RequestLife:
            return self._life_of(small, [door.texts.plain_choice()], timeline)

        return BeamSearch(request, choices[: spec.n], rules, begin, self._timeline, door.clock)

    def _life_of(
        self, request: AdmittedRequest, choices: Sequence[Choice], timeline: RequestTimeline
    ) -> RequestLife:
        door = self._door
        return RequestLife(request, choices, door.fleet, timeline, door.settings.life, door.clock)

    def _told(self, life: ServedLife) -> AsyncGenerator[Delta, None]:
        """What the client is to hear of all that its choices gain."""
        spec = self.spec
        if spec.max_tokens == 0:
            return only_ends(life.deltas(), spec.n)
        if spec.num_choices > spec.n and spec.beams is None:
            return best_choices(life.deltas(), spec.n, tell_logprobs=spec.logprobs is not None)
        return life.deltas()

    async def _admit(self, visit: Visit) -> AdmittedRequest:
        """The checked, tokenised and charged request, within its deadline."""
        spec, clock, call = self.spec, self._door.clock, self._call
        timeouts_s = (self._door.settings.request_timeout_s, spec.timeout_s, call.timeout_s)
        timeout_s = min(each for each in timeouts_s if each is not None)
        deadline = self._timeline.received + timeout_s
        self._timeline.tokenize_began = clock.now()
        prompt, guard = spec.prompt, self._door.guard
        tenant = call.tenant or spec.tenant
        try:
            async with asyncio.timeout(max(0.0, deadline - clock.now())):
                if guard is not None:
                    self._guarded = await guard.admit(spec, self.request_id, tenant)
                    prompt = self._guarded.prompt
                token_ids = await self._door.texts.encode(prompt, spec.add_special_tokens)
                check_token_ids(spec, token_ids, self._door.settings.vocab_size)
                bad_words = await self._door.texts.bad_words(spec.bad_words)
                grammar = await self._grammar(token_ids)
        except TimeoutError:
            raise DeadlineError("the request's deadline passed while it was tokenised") from None
        self.prompt_token_ids = truncated(spec, token_ids, self._door.settings.max_model_len)
        self._is_truncated = len(self.prompt_token_ids) < len(token_ids)
        self._timeline.tokenized = clock.now()
        if self._door.settings.log_prompts:
            log.info("request %s asks: %s", self.request_id, prompt)
        self.seed = new_seed() if spec.seed is None else spec.seed % 2**64
        sampling = self._sampling(bad_words)
        await visit.charge(len(self.prompt_token_ids), lease_s=timeout_s)
        return AdmittedRequest(
            request_id=self.request_id,
            model=self._door.settings.model,
            token_ids=self.prompt_token_ids,
            n=spec.num_choices,
            sampling=sampling,
            stop=spec.stop,
            deadline=deadline,
            priority=visit.worker_priority(spec.priority),
            cache_salt=call.cache_salt(spec.cache_salt),
            tenant=tenant,
            grammar=grammar,
            trace=self._record.trace,
        )

    async def _grammar(self, prompt: tuple[int, ...]) -> str:
        """What the answer must follow; "" for nothing."""
        wish = Wish(self.spec.output_format, self.spec.tooling)
        if not needs_grammar(wish):
            return ""
        return await self._door.texts.grammar(wish, self._thinking(prompt))

    def _thinking(self, token_ids: tuple[int, ...]) -> Thinking:
        """Whether an answer to this prompt begins with thoughts."""
        texts, prompt = self._door.texts, self.spec.prompt
        if not isinstance(prompt, ChatPrompt) or not texts.dialect.thinks:
            return Thinking.OVER
        continued = None
        if prompt.continue_final_message:
            continued = str(prompt.messages[-1].get("content", ""))
        return thinking_after(texts.tail(token_ids), continued)

    def _sampling(self, bad_words: tuple[tuple[int, ...], ...]) -> SamplingParams:
        spec, settings = self.spec, self._door.settings
        defaults, vocab_size = settings.defaults, settings.vocab_size
        eos_token_ids = self._door.texts.tokenizer.eos_token_ids
        check_something_is_left(spec, bad_words, eos_token_ids, vocab_size)
        ranked = spec.num_choices > spec.n and spec.beams is None
        return SamplingParams(
            max_tokens=resolve_max_tokens(spec, len(self.prompt_token_ids), settings.max_model_len),
            temperature=_first(spec.temperature, defaults.temperature, 1.0),
            top_k=_first(spec.top_k, defaults.top_k, 0),
            top_p=_first(spec.top_p, defaults.top_p, 1.0),
            min_p=_first(spec.min_p, defaults.min_p, 0.0),
            presence_penalty=spec.presence_penalty,
            frequency_penalty=spec.frequency_penalty,
            repetition_penalty=_first(spec.repetition_penalty, defaults.repetition_penalty, 1.0),
            logit_bias=tuple(sorted(spec.logit_bias.items())),
            logprobs=0 if spec.logprobs is None and ranked else spec.logprobs,
            seed=self.seed,
            min_tokens=spec.min_tokens,
            stop_token_ids=spec.stop_token_ids,
            ignore_eos=spec.ignore_eos,
            bad_words=bad_words,
            allowed_token_ids=tuple(sorted(set(spec.allowed_token_ids or ()))),
            prompt_logprobs=spec.prompt_logprobs,
        )

    def _note(self, delta: Delta) -> None:
        now = self._door.clock.now()
        last = self._last_token.get(delta.choice)
        self._last_token[delta.choice] = now
        since_last_s = None if last is None else now - last
        self._meter.tokens(len(delta.token_ids), since_last_s)


def _first(given: T | None, by_model: T | None, otherwise: T) -> T:
    """The client's value, or the model's own, or everybody's."""
    if given is not None:
        return given
    return otherwise if by_model is None else by_model
