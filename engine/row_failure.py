"""What is wrong with some rows of a step: their attempts fail, the others go on."""

from __future__ import annotations

from core.errors import TandemError


class RowsFailedError(TandemError):
    """`rows` are indices of what was to be sampled."""

    def __init__(self, message: str, rows: tuple[int, ...]) -> None:
        super().__init__(message)
        self.rows = rows
