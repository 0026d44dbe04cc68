"""One sequence: the token ids of one choice, and which of them have KV where.

Until its first token is sampled, a sequence stands for all the choices that share its prompt.

    WAITING    no blocks; runs when admitted
    IMPORTING  blocks reserved, KV on its way from a prefill worker (decode role only)
    RUNNING    blocks held; in steps
    FINISHED   over, for whatever reason; holds nothing

Preemption is RUNNING or IMPORTING back to WAITING with nothing computed: the tokens are kept,
their KV is computed again.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from core.request import Attempt, SamplingParams
from engine.token_history import TokenHistory
from kv_cache.block_hash import extend
from kv_cache.block_pool import Holder, HolderKind
from text.structure.state import GrammarState


class SequenceStatus(enum.Enum):
    WAITING = "waiting"
    IMPORTING = "importing"
    RUNNING = "running"
    FINISHED = "finished"


_LEGAL = {
    SequenceStatus.WAITING: {
        SequenceStatus.IMPORTING,
        SequenceStatus.RUNNING,
        SequenceStatus.FINISHED,
    },
    SequenceStatus.IMPORTING: {
        SequenceStatus.WAITING,
        SequenceStatus.RUNNING,
        SequenceStatus.FINISHED,
    },
    SequenceStatus.RUNNING: {SequenceStatus.WAITING, SequenceStatus.FINISHED},
    SequenceStatus.FINISHED: set(),
}

NO_BLOCK = -1
"""In a block table: the block left the sliding window and was released."""


class BlockTable:
    """Block ids in order of position, in a numpy buffer that grows by doubling."""

    __slots__ = ("_buffer", "_size")

    def __init__(self) -> None:
        self._buffer: npt.NDArray[np.int32] = np.empty(16, dtype=np.int32)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return int(self._buffer[index])

    def extend(self, blocks: Seq[int]) -> None:
        needed = self._size + len(blocks)
        if needed > len(self._buffer):
            grown = np.empty(max(needed, 2 * len(self._buffer)), dtype=np.int32)
            grown[: self._size] = self._buffer[: self._size]
            self._buffer = grown
        self._buffer[self._size : needed] = blocks
        self._size = needed

    def view(self) -> npt.NDArray[np.int32]:
        """The ids, `[num_blocks]`; NO_BLOCK where released. Valid until the next change."""
        return self._buffer[: self._size]

    def replace(self, index: int, block: int) -> None:
        self._buffer[index] = block

    def held(self, start: int = 0, end: int | None = None) -> list[int]:
        """Ids in `[start, end)` that were not released."""
        return [b for b in self.view()[start:end].tolist() if b != NO_BLOCK]

    def drop_leading(self, num_blocks: int) -> list[int]:
        """Marks the first `num_blocks` as released and returns those that weren't yet."""
        dropped = self.held(0, num_blocks)
        self._buffer[: min(num_blocks, self._size)] = NO_BLOCK
        return dropped

    def clear(self) -> None:
        self._size = 0


class Sequence:
    """Token ids plus the count of those that have KV. Owned by the step loop's thread."""

    __slots__ = (
        "arrival",
        "attempt",
        "block_table",
        "choices",
        "grammar",
        "hashes",
        "holder",
        "num_computed",
        "num_prompt_tokens",
        "status",
        "root",
        "token_ids",
        "wants_scores",
        "_history",
        "_needs_history",
    )

    def __init__(
        self,
        attempt: Attempt,
        choices: tuple[int, ...],
        *,
        arrival: float,
        root: bytes,
        grammar: GrammarState | None = None,
    ) -> None:
        """`grammar` is the state after what the attempt has emitted; it is the sequence's own."""
        self.attempt = attempt
        self.grammar = grammar
        self.choices = choices
        self.arrival = arrival
        self.token_ids: list[int] = list(attempt.token_ids)
        self.num_prompt_tokens = attempt.num_prompt_tokens
        self.num_computed = 0
        self.wants_scores = attempt.sampling.prompt_logprobs is not None
        """Log-probabilities of the prompt's own tokens are this worker's to tell."""
        self._history: TokenHistory | None = None
        self._needs_history = attempt.sampling.needs_history
        self.block_table = BlockTable()
        self.hashes: list[bytes] = []
        self.status = SequenceStatus.WAITING
        self.holder = Holder(HolderKind.SEQUENCE, f"{attempt.transfer_id}/{choices[0]}")
        self.root = root

    @property
    def sampling(self) -> SamplingParams:
        return self.attempt.sampling

    @property
    def transfer_id(self) -> str:
        return self.attempt.transfer_id

    @property
    def order(self) -> tuple[int, float, int]:
        """Who is served first: smaller first. Priority, then arrival; stable over preemptions."""
        return (self.attempt.priority, self.arrival, self.choices[0])

    @property
    def in_background(self) -> bool:
        return self.attempt.in_background

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def max_tokens_total(self) -> int:
        """Length at which `max_tokens` ends the sequence; its last token needs no KV."""
        return self.num_prompt_tokens + self.sampling.max_tokens

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities are still owed: then all of the prompt is computed."""
        return self.wants_scores and self.num_output_tokens == 0

    def append(self, token_id: int) -> None:
        """One more output token, which has no KV yet."""
        self.token_ids.append(token_id)
        if self._history is not None:
            self._history.append(token_id)
        if self.grammar is not None:
            self.grammar.accept(token_id)

    def completes(self, token_id: int) -> bool:
        """Whether its grammar lets nothing follow this token."""
        return self.grammar is not None and self.grammar.completes(token_id)

    def history(self) -> TokenHistory | None:
        """What sampling looks at, counted once and kept from then on; None if at nothing."""
        if self._needs_history and self._history is None:
            split = self.num_prompt_tokens
            self._history = TokenHistory(self.token_ids[:split], self.token_ids[split:])
        return self._history

    def set_status(self, status: SequenceStatus) -> None:
        assert status in _LEGAL[self.status], f"{self.holder}: {self.status} -> {status}"
        self.status = status

    def full_block_hashes(self, block_size: int, num_tokens: int) -> list[bytes]:
        """Chained hashes of the full blocks within the first `num_tokens` tokens, kept."""
        wanted = num_tokens // block_size
        while len(self.hashes) < wanted:
            start = len(self.hashes) * block_size
            parent = self.hashes[-1] if self.hashes else self.root
            self.hashes.append(extend(parent, self.token_ids[start : start + block_size]))
        return self.hashes[:wanted]

    def fork(self, choice: int) -> Sequence:
        """Another choice with the same tokens so far and no blocks yet."""
        child = Sequence(self.attempt, (choice,), arrival=self.arrival, root=self.root)
        child.token_ids = list(self.token_ids)
        child.hashes = list(self.hashes)
        child._history = None if self._history is None else self._history.copy()
        child.grammar = None if self.grammar is None else self.grammar.copy()
        return child

    def restart(self) -> None:
        """Forgets all KV, for preemption; the caller releases the blocks."""
        self.block_table.clear()
        self.num_computed = 0
