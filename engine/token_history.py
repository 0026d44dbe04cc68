"""Which tokens a choice has seen, and how often each is in its output: kept, not recounted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


class TokenHistory:
    """Distinct tokens of prompt and output with their counts in the output, in growing arrays."""

    __slots__ = ("_counts", "_ids", "_output", "_place")

    def __init__(self, prompt: Iterable[int], output: Iterable[int] = ()) -> None:
        self._place = {token_id: i for i, token_id in enumerate(dict.fromkeys(prompt))}
        self._ids: Int32 = np.fromiter(self._place, dtype=np.int32)
        self._counts: Int32 = np.zeros(len(self._ids), dtype=np.int32)
        self._output: list[int] = []
        for token_id in output:
            self.append(token_id)

    def append(self, token_id: int) -> None:
        """One more output token."""
        place = self._place.setdefault(token_id, len(self._place))
        if place == len(self._ids):
            self._grow()
        self._output.append(token_id)
        self._ids[place] = token_id
        self._counts[place] += 1

    def copy(self) -> TokenHistory:
        """For a choice that goes its own way from here."""
        other = TokenHistory(())
        other._place = dict(self._place)
        other._ids, other._counts = self._ids.copy(), self._counts.copy()
        other._output = list(self._output)
        return other

    @property
    def token_ids(self) -> Int32:
        """[num_tokens], each once. Valid until the next `append`."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> Int32:
        """[num_tokens], how often each is in the output. Valid until the next `append`."""
        return self._counts[: len(self._place)]

    def ends_with(self, token_ids: Sequence[int]) -> bool:
        """Whether these are the last tokens of the output."""
        count = len(token_ids)
        return count == 0 or tuple(self._output[-count:]) == tuple(token_ids)

    def addresses(self) -> tuple[int, int, int]:
        """Of ids and counts, and how many they are; valid as long as they are."""
        return self._ids.ctypes.data, self._counts.ctypes.data, len(self._place)

    def _grow(self) -> None:
        room = max(16, 2 * len(self._ids))
        for name in ("_ids", "_counts"):
            grown = np.zeros(room, dtype=np.int32)
            old: Int32 = getattr(self, name)
            grown[: len(old)] = old
            setattr(self, name, grown)
