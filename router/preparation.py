"""From what a client asks to what is served: guarded, tokenised, resolved, charged."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TypeVar

from core.errors import DeadlineError
from core.request import PinnedPrefix, SamplingParams
from router.door import Door
from router.guard.guarded_request import GuardedRequest
from router.identifiers import new_seed
from router.life.admitted_request import AdmittedRequest
from router.limits import (
    check_something_is_left,
    check_token_ids,
    resolve_max_tokens,
    truncated,
)
from router.message_readers import thinking_of
from router.observe.request_record import RequestRecord
from router.pinning import pin_wish
from router.request_spec import ChatPrompt, RequestSpec
from router.structure.answer_grammar import Wish, needs_grammar
from router.visit import Visit

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that may be served."""

    request: AdmittedRequest
    prompt: ChatPrompt | str | tuple[int, ...]
    """What was tokenised: the guard may have changed the client's own."""
    guarded: GuardedRequest | None
    is_truncated: bool
    """Only the last tokens of the prompt are served."""


async def prepare(door: Door, spec: RequestSpec, record: RequestRecord, visit: Visit) -> Prepared:
    """The checked, tokenised and charged request, within its deadline. Raises TandemError."""
    settings, clock, timeline = door.settings, door.clock, record.timeline
    timeouts_s = (settings.request_timeout_s, spec.timeout_s, visit.call.timeout_s)
    timeout_s = min(each for each in timeouts_s if each is not None)
    deadline = timeline.received + timeout_s
    timeline.tokenize_began = clock.now()
    try:
        async with asyncio.timeout(max(0.0, deadline - clock.now())):
            read = await _read(door, spec, record)
    except TimeoutError:
        raise DeadlineError("the request's deadline passed while it was tokenised") from None
    token_ids = truncated(spec, read.token_ids, settings.max_model_len)
    timeline.tokenized = clock.now()
    if settings.log_prompts:
        log.info("request %s asks: %s", record.request_id, read.prompt)
    sampling = _sampling(door, spec, len(token_ids), read.bad_words)
    pins = pin_wish(
        spec,
        read.prefixes,
        num_cut=len(read.token_ids) - len(token_ids),
        owner=visit.call.tenant,
        max_owned_tokens=visit.max_pinned_tokens,
    )
    await visit.charge(len(token_ids), lease_s=timeout_s)
    request = AdmittedRequest(
        request_id=record.request_id,
        model=settings.model,
        token_ids=token_ids,
        n=spec.num_choices,
        sampling=sampling,
        stop=spec.stop,
        deadline=deadline,
        priority=visit.worker_priority(spec.priority),
        cache_salt=visit.call.cache_salt(spec.cache_salt),
        tenant=record.tenant,
        pins=pins,
        grammar=read.grammar,
        trace=record.trace,
    )
    return Prepared(request, read.prompt, read.guarded, len(token_ids) < len(read.token_ids))


@dataclass(frozen=True, slots=True)
class _Read:
    """What the client's texts mean in tokens."""

    guarded: GuardedRequest | None
    prompt: ChatPrompt | str | tuple[int, ...]
    token_ids: tuple[int, ...]
    prefixes: list[PinnedPrefix]
    """Of the tokens, that the client wishes to be kept."""
    bad_words: tuple[tuple[int, ...], ...]
    grammar: str
    """What the answer must follow; "" for nothing."""


async def _read(door: Door, spec: RequestSpec, record: RequestRecord) -> _Read:
    texts, guarded, prompt = door.texts, None, spec.prompt
    if door.guard is not None:
        guarded = await door.guard.admit(spec, record.request_id, record.tenant)
        prompt = guarded.prompt
    token_ids = await texts.encode(prompt, spec.add_special_tokens)
    check_token_ids(spec, token_ids, door.settings.vocab_size)
    prefixes = await texts.pinned_prefixes(spec, prompt, token_ids)
    bad_words = await texts.bad_words(spec.bad_words)
    wish, grammar = Wish(spec.output_format, spec.tooling), ""
    if needs_grammar(wish):
        grammar = await texts.grammar(wish, thinking_of(spec, texts, token_ids))
    return _Read(guarded, prompt, token_ids, prefixes, bad_words, grammar)


def _sampling(
    door: Door,
    spec: RequestSpec,
    num_prompt_tokens: int,
    bad_words: tuple[tuple[int, ...], ...],
) -> SamplingParams:
    settings, defaults = door.settings, door.settings.defaults
    eos_token_ids = door.texts.tokenizer.eos_token_ids
    check_something_is_left(spec, bad_words, eos_token_ids, settings.vocab_size)
    ranked = spec.num_choices > spec.n and spec.beams is None
    return SamplingParams(
        max_tokens=resolve_max_tokens(spec, num_prompt_tokens, settings.max_model_len),
        temperature=_first(spec.temperature, defaults.temperature, 1.0),
        top_k=_first(spec.top_k, defaults.top_k, 0),
        top_p=_first(spec.top_p, defaults.top_p, 1.0),
        min_p=_first(spec.min_p, defaults.min_p, 0.0),
        presence_penalty=spec.presence_penalty,
        frequency_penalty=spec.frequency_penalty,
        repetition_penalty=_first(spec.repetition_penalty, defaults.repetition_penalty, 1.0),
        logit_bias=tuple(sorted(spec.logit_bias.items())),
        logprobs=0 if spec.logprobs is None and ranked else spec.logprobs,
        seed=new_seed() if spec.seed is None else spec.seed % 2**64,
        min_tokens=spec.min_tokens,
        stop_token_ids=spec.stop_token_ids,
        ignore_eos=spec.ignore_eos,
        bad_words=bad_words,
        allowed_token_ids=tuple(sorted(set(spec.allowed_token_ids or ()))),
        prompt_logprobs=spec.prompt_logprobs,
    )


def _first(given: T | None, by_model: T | None, otherwise: T) -> T:
    """The client's value, or the model's own, or everybody's."""
    if given is not None:
        return given
    return otherwise if by_model is None else by_model
