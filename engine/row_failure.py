"""What is wrong with some rows of a step: their attempts fail, the others go on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from core.errors import TandemError
from engine.sample_row import SampleRow


class RowsFailedError(TandemError):
    """`rows` are indices of what was to be sampled."""

    def __init__(self, message: str, rows: tuple[int, ...]) -> None:
        super().__init__(message)
        self.rows = rows


class NothingAllowedError(RowsFailedError):
    """The model computed logits for `rows`, of which the requests allow none."""

    code = "nothing_allowed"


def explained(
    error: RowsFailedError, rows: Sequence[SampleRow], logits: torch.Tensor
) -> RowsFailedError:
    """The error of rows without a finite maximum, or rather of those that forbade themselves."""
    finite = torch.isfinite(logits.amax(-1))  # [R]
    forbidden = tuple(i for i in error.rows if finite[rows[i].logits_row])
    if not forbidden:
        return error
    message = "no token is left that all fields of the request together allow"
    return NothingAllowedError(message, forbidden)
