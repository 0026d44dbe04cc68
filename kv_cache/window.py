"""Which blocks a sliding window has left behind."""

from __future__ import annotations


def num_blocks_outside(num_computed_tokens: int, window: int | None, block_size: int) -> int:
    """How many leading blocks no later token will read; they can be released.

    The next token, at position `num_computed_tokens`, sees `window` tokens including itself; those
    after it see none that are older. None means full attention: every block stays.
    """
    if window is None:
        return 0
    first_visible = num_computed_tokens - window + 1
    return max(first_visible, 0) // block_size
