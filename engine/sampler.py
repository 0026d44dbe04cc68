"""From logits to tokens: one token for each row, with log-probabilities where asked for.

    edit     bias, penalties, grammar, min_tokens: only rows that have any
    choose   greedy rows by argmax; the others by one random number each, with or without filters
    report   log-probabilities of the model's own logits, before edits and temperature

Rows are handled in groups of one kind, so that one row with top_p doesn't make all others pay, and
each row's result depends on its own logits, parameters, choice and position alone.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from core.request import SamplingParams, TokenLogprobs
from engine.draw import Draws, Filters, draw, draw_filtered
from engine.logit_edits import edit_logits, needs_edits
from engine.random_numbers import uniform
from engine.row_failure import RowsFailedError
from engine.sample_row import SampleRow
from engine.top_tokens import top_tokens

__all__ = [
    "MIN_TEMPERATURE",
    "NonFiniteLogitsError",
    "SampleRow",
    "Sampled",
    "Sampler",
    "TokenSampler",
    "is_greedy",
]

# As in vLLM: below this a temperature is greedy, since dividing by it overflows.
MIN_TEMPERATURE = 1e-5


class Sampled(NamedTuple):
    """One row's token."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class NonFiniteLogitsError(RowsFailedError):
    """The model computed NaN or infinity for `rows` (indices of what was to be sampled)."""

    code = "non_finite_logits"

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__(f"logits of rows {rows} have no finite maximum", rows)


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest token is taken."""
    return params.temperature < MIN_TEMPERATURE or params.top_k == 1


class TokenSampler(Protocol):
    """`Sampler`, or `engine.compiled_sampler.CompiledSampler`."""

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled]: ...


class _Kind(enum.Enum):
    GREEDY = "greedy"
    RANDOM = "random"
    FILTERED = "filtered"


class Sampler:
    """Chooses tokens in torch, on any device, from a vocabulary of `vocab_size`. Keeps no state."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
        """One token for each of `rows`, in their order; `logits` is [R, vocab] float32, unchanged.

        Raises NonFiniteLogitsError, which names the rows, if a row's logits have no finite maximum.
        """
        if not rows:
            return []
        assert logits.shape[1:] == (self.vocab_size,) and logits.dtype == torch.float32
        edited = self._edited(logits, rows)  # [n, vocab]
        best = edited.amax(-1)  # [n]
        _check_finite(best)
        token_ids = self._choose(edited, best, rows)  # [n]
        logprobs = self._logprobs(logits, rows, token_ids)
        return [
            Sampled(token_id, logprobs.get(index))
            for index, token_id in enumerate(token_ids.tolist())
        ]

    def _edited(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
        """Logits of each row after its edits; the model's own tensor where nothing changes."""
        has_edits = any(needs_edits(row) for row in rows)
        source = [row.logits_row for row in rows]
        if source != list(range(len(logits))):
            logits = logits[_tensor(source, torch.int64, logits.device)]
        elif has_edits:
            logits = logits.clone()
        if has_edits:
            edit_logits(logits, rows)
        return logits

    def _choose(
        self, logits: torch.Tensor, best: torch.Tensor, rows: Sequence[SampleRow]
    ) -> torch.Tensor:
        kinds = [self._kind(row.params) for row in rows]
        if all(kind is _Kind.GREEDY for kind in kinds):
            return logits.argmax(-1)
        chosen = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
        for kind in set(kinds):
            members = [index for index, other in enumerate(kinds) if other is kind]
            index = _tensor(members, torch.int64, logits.device)
            group = [rows[member] for member in members]
            own = logits if len(members) == len(rows) else logits[index]  # indexing copies
            chosen[index] = self._choose_alike(kind, own, best[index], group)
        return chosen

    def _choose_alike(
        self, kind: _Kind, logits: torch.Tensor, best: torch.Tensor, rows: Sequence[SampleRow]
    ) -> torch.Tensor:
        if kind is _Kind.GREEDY:
            return logits.argmax(-1)
        draws = _draws(logits, best, rows)
        if kind is _Kind.RANDOM:
            return draw(draws)
        return draw_filtered(draws, self._filters(rows, logits.device))

    def _kind(self, params: SamplingParams) -> _Kind:
        if is_greedy(params):
            return _Kind.GREEDY
        if self._top_k(params) < self.vocab_size or params.top_p < 1 or params.min_p > 0:
            return _Kind.FILTERED
        return _Kind.RANDOM

    def _top_k(self, params: SamplingParams) -> int:
        return min(params.top_k, self.vocab_size) if params.top_k > 0 else self.vocab_size

    def _filters(self, rows: Sequence[SampleRow], device: torch.device) -> Filters:
        return Filters(
            _tensor([self._top_k(row.params) for row in rows], torch.int64, device),
            _tensor([row.params.top_p for row in rows], torch.float64, device),
            _tensor([row.params.min_p for row in rows], torch.float32, device),
        )

    def _logprobs(
        self, logits: torch.Tensor, rows: Sequence[SampleRow], token_ids: torch.Tensor
    ) -> dict[int, TokenLogprobs]:
        """Log-probabilities by row index, for the rows that want them."""
        wanted = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
        if not wanted:
            return {}
        source = _tensor([rows[i].logits_row for i in wanted], torch.int64, logits.device)
        own = logits[source]  # [wanted, vocab]
        logprobs = own.log_softmax(-1)
        sampled = token_ids[_tensor(wanted, torch.int64, logits.device)]
        sampled_logprobs = logprobs.gather(-1, sampled[:, None])[:, 0].tolist()
        counts = [min(rows[i].params.logprobs or 0, self.vocab_size) for i in wanted]
        tops = _best_alternatives(own, logprobs, counts)
        return {
            i: TokenLogprobs(logprob, top)
            for i, logprob, top in zip(wanted, sampled_logprobs, tops, strict=True)
        }


def _tensor(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """One value per row, [n]."""
    return torch.tensor(values, dtype=dtype, device=device)


def _check_finite(best: torch.Tensor) -> None:
    finite = torch.isfinite(best)
    if not bool(finite.all()):
        raise NonFiniteLogitsError(tuple(torch.nonzero(~finite)[:, 0].tolist()))


def _draws(logits: torch.Tensor, best: torch.Tensor, rows: Sequence[SampleRow]) -> Draws:
    numbers = uniform(
        [row.params.seed for row in rows],
        [row.choice for row in rows],
        [row.position for row in rows],
    )
    temperatures = [row.params.temperature for row in rows]
    return Draws(
        logits=logits,
        best=best,
        temperature=_tensor(temperatures, torch.float32, logits.device),
        uniform=torch.from_numpy(numbers).to(logits.device),
    )


def _best_alternatives(
    logits: torch.Tensor, logprobs: torch.Tensor, counts: Sequence[int]
) -> list[tuple[tuple[int, float], ...]]:
    """Row i's `counts[i]` likeliest tokens with their log-probabilities, best first."""
    if max(counts) == 0:
        return [() for _ in counts]
    ids = top_tokens(logits, max(counts))  # [n, max(counts)]
    values = logprobs.gather(-1, ids).tolist()
    return [
        tuple(zip(row_ids[:count], row_values[:count], strict=True))
        for row_ids, row_values, count in zip(ids.tolist(), values, counts, strict=True)
    ]
