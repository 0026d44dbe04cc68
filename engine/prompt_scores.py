"""Log-probabilities of a prompt's own tokens, from steps that compute the prompt anyway.

Scoring a known token is sampling where no other token is allowed: the sampler reports what the
model thought of it, and of the best alternatives, with the same arithmetic as for output tokens.
"""

from __future__ import annotations

from core.request import PromptLogprobs, SamplingParams
from engine.plan import PlannedChunk, StepPlan
from engine.sample_row import SampleRow
from engine.sampler import Sampled


def score_rows(chunk: PlannedChunk, logits_row: int) -> list[SampleRow]:
    """One row for each scored token of the chunk, whose logits lie from `logits_row` on."""
    sequence = chunk.sequence
    first = sequence.num_computed + 1
    wanted = sequence.token_ids[first : first + chunk.num_scored]
    return [
        SampleRow(_known(token_id, sequence.sampling), 0, 0, None, logits_row + i, ())
        for i, token_id in enumerate(wanted)
    ]


def split_scores(
    plan: StepPlan, sampled: list[Sampled]
) -> tuple[list[PromptLogprobs], list[Sampled]]:
    """What a step yielded, before it is taken as computed: scores, and tokens of choices."""
    scores: list[PromptLogprobs] = []
    drawn: list[Sampled] = []
    begin = 0
    for chunk in plan.chunks:
        middle = begin + chunk.num_scored
        end = middle + len(chunk.sample_choices)
        known = tuple(s.logprobs for s in sampled[begin:middle] if s.logprobs is not None)
        if known:
            sequence = chunk.sequence
            scores.append(PromptLogprobs(sequence.transfer_id, sequence.num_computed + 1, known))
        drawn += sampled[middle:end]
        begin = end
    return scores, drawn


def _known(token_id: int, wanted: SamplingParams) -> SamplingParams:
    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        allowed_token_ids=(token_id,),
        logprobs=wanted.prompt_logprobs,
    )
