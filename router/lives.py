"""Which life serves a request, and what of that life its client is to hear."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from router.door import Door
from router.guard.guarded_request import GuardedRequest
from router.life.admitted_request import AdmittedRequest
from router.life.beam_search import BeamSearch
from router.life.beams import BeamRules
from router.life.best import best_choices, only_ends
from router.life.choice import Choice, Delta
from router.life.request_life import RequestLife
from router.life.served_life import ServedLife
from router.life.timeline import RequestTimeline
from router.request_spec import RequestSpec


def new_life(
    door: Door,
    spec: RequestSpec,
    request: AdmittedRequest,
    timeline: RequestTimeline,
    guarded: GuardedRequest | None,
) -> ServedLife:
    """Nothing is sent before its first delta is asked for."""
    choices = door.texts.choices(spec)

    def life_of(
        request: AdmittedRequest, choices: Sequence[Choice], timeline: RequestTimeline
    ) -> RequestLife:
        return RequestLife(request, choices, door.fleet, timeline, door.settings.life, door.clock)

    if spec.beams is None:
        if guarded is None:
            return life_of(request, choices, timeline)
        return guarded.life(request, choices, life_of, timeline, spec, door.texts, door.clock)
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
        return life_of(small, [door.texts.plain_choice()], timeline)

    return BeamSearch(request, choices[: spec.n], rules, begin, timeline, door.clock)


def told(life: ServedLife, spec: RequestSpec) -> AsyncGenerator[Delta, None]:
    """What the client is to hear of all that the life's choices gain."""
    if spec.max_tokens == 0:
        return only_ends(life.deltas(), spec.n)
    if spec.num_choices > spec.n and spec.beams is None:
        return best_choices(life.deltas(), spec.n, tell_logprobs=spec.logprobs is not None)
    return life.deltas()
