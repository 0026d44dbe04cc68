"""Where one answer is in its grammar: which tokens may follow, and whether it is complete.

state = grammar.start()         nothing emitted yet
state.fill()                    `state.mask` says which tokens may follow; drops the GIL
state.accept(token)             the token was emitted
state.complete                  nothing can follow: the answer is over
grammar.start([token, ...])     the same state again, from the emitted tokens alone
"""

from __future__ import annotations

from collections.abc import Sequence

import llguidance
import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int32]


class GrammarState:
    """The state after the tokens accepted so far. One thread at a time may use it."""

    __slots__ = ("_address", "_matcher", "mask")

    def __init__(self, matcher: llguidance.LLMatcher, num_words: int) -> None:
        """`matcher` is this state's own from now on; `num_words` is the length of its masks."""
        self._matcher = matcher
        self.mask: Words = np.zeros(num_words, dtype=np.int32)
        """Bit i of word i // 32: whether token i may follow. Valid from `fill` to `accept`."""
        self._address = self.mask.ctypes.data

    @property
    def address(self) -> int:
        """Of the mask."""
        return self._address

    @property
    def complete(self) -> bool:
        """No token can follow: the answer is a whole sentence of its grammar."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def problem(self) -> str:
        """Why the grammar can't be followed any further: a limit was met, or a token that it
        doesn't allow. Empty: nothing is wrong."""
        return self._matcher.get_error() if self._matcher.is_error() else ""

    def fill(self) -> None:
        """Computes the mask, all zeros where there is a problem."""
        if self._matcher.is_error():
            self.mask.fill(0)
        else:
            self._matcher.unsafe_compute_mask_ptr(self._address, self.mask.nbytes)

    def accept(self, token_id: int) -> None:
        """Goes on after one more token; one that isn't allowed is a `problem` from then on."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token_id)

    def accept_all(self, token_ids: Sequence[int]) -> None:
        """`accept` for each of the tokens."""
        for token_id in token_ids:
            self.accept(token_id)

    def completes(self, token_id: int) -> bool:
        """Whether the answer would be complete with this token. Changes nothing."""
        probe = self._matcher.deep_copy()
        return probe.consume_token(token_id) and probe.is_stopped()

    def copy(self) -> GrammarState:
        """For a choice that goes its own way from here."""
        return GrammarState(self._matcher.deep_copy(), len(self.mask))
