"""What both of OpenAI's APIs share in their answers: usage, timings, the frame of an event."""

from __future__ import annotations

import json
from collections.abc import Sequence

from router.generation import Generation

DONE = b"data: [DONE]\n\n"


def frame(value: dict[str, object]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def usage_of(generations: Sequence[Generation]) -> dict[str, object]:
    """Tokens of all prompts together. `cached_tokens` are P's own hits, not what was moved."""
    usages = [generation.usage for generation in generations]
    prompt = sum(u.prompt_tokens for u in usages)
    completion = sum(u.completion_tokens for u in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(u.cached_tokens for u in usages)},
    }


def extension_of(generations: Sequence[Generation]) -> dict[str, object]:
    """The `tandem` object, sent only to who asked with `include_timings`: seconds and names.

    Of several prompts it tells about the first.
    """
    generation = generations[0]
    timings, served_by = generation.timings, generation.served_by
    return {
        "request_id": generation.request_id,
        "seed": generation.seed,
        "prefill_worker": served_by.prefill_worker,
        "decode_worker": served_by.decode_worker,
        "num_attempts": served_by.num_attempts,
        "queue_s": timings.queue_s,
        "tokenize_s": timings.tokenize_s,
        "prefill_s": timings.prefill_s,
        "ttft_s": timings.ttft_s,
        "handoff_gap_s": timings.handoff_gap_s,
        "total_s": timings.total_s,
    }
