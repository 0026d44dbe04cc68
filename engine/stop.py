"""Whether a choice ends with the token just sampled."""

from __future__ import annotations

from collections.abc import Collection

from core.request import FinishReason, SamplingParams


def finish_reason(
    params: SamplingParams,
    token_id: int,
    num_output_tokens: int,
    eos_token_ids: Collection[int],
    complete: bool = False,
) -> FinishReason | None:
    """Why the choice is over after `token_id`, its `num_output_tokens`-th output token; or None.

    `complete`: its grammar lets nothing follow, before `min_tokens` or not. Stop strings are the
    router's affair: only it has the text.
    """
    if complete:
        return FinishReason.STOP
    if num_output_tokens > params.min_tokens and _ends(params, token_id, eos_token_ids):
        return FinishReason.STOP
    return FinishReason.LENGTH if num_output_tokens >= params.max_tokens else None


def _ends(params: SamplingParams, token_id: int, eos_token_ids: Collection[int]) -> bool:
    if token_id in params.stop_token_ids:
        return True
    return not params.ignore_eos and token_id in eos_token_ids
