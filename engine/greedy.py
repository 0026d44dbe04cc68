"""Rows of logits of which only the largest is asked for: a head may leave the rest inexact."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.logit_edits import needs_edits
from engine.sample_row import SampleRow
from engine.sampler import is_greedy


def only_largest(rows: Sequence[SampleRow], num_logits: int) -> torch.Tensor | None:
    """uint8 [num_logits], 1 where every choice only takes the likeliest token; None if nowhere."""
    marks = bytearray(b"\x01" * num_logits)
    for row in rows:
        if not takes_largest(row):
            marks[row.logits_row] = 0
    return torch.frombuffer(marks, dtype=torch.uint8) if any(marks) else None


def takes_largest(row: SampleRow) -> bool:
    """Whether the model's largest logit decides, and no log-probability is wanted."""
    return is_greedy(row.params) and row.params.logprobs is None and not needs_edits(row)
