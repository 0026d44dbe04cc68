"""Changes to single logits before sampling: bias, penalties, then what must not be sampled.

Only the tokens concerned are touched, all rows' in one scatter. Ids outside the vocabulary can't be
sampled and have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from core.request import SamplingParams
from engine.sample_row import SampleRow
from engine.token_history import TokenHistory
from text.structure.state import GrammarState

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def needs_edits(row: SampleRow) -> bool:
    """Whether anything but the model decides this row's logits."""
    return row.grammar is not None or row.params.changes_logits or _may_not_stop(row)


def edit_logits(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    """Applies row i's edits to `logits[i]` in place; `logits` is [n, vocab] float32.

    As in OpenAI's API and vLLM: the repetition penalty divides positive and multiplies negative
    logits of tokens in prompt or output; frequency and presence penalties look at the output only.
    Where a grammar leaves nothing but stopping, `min_tokens` gives way.
    """
    _add_biases(logits, rows)
    _penalise(logits, rows)
    for index, row in enumerate(rows):
        if row.grammar is not None:
            _forbid_by_grammar(logits[index], row.grammar)
    _forbid(logits, rows)
    _allow_only(logits, rows)


def forbidden_tokens(params: SamplingParams, history: TokenHistory | None) -> list[int]:
    """Tokens that would complete a bad word now."""
    return [
        word[-1]
        for word in params.bad_words
        if len(word) == 1 or (history is not None and history.ends_with(word[:-1]))
    ]


@dataclass(frozen=True, slots=True)
class _Penalties:
    """One row's penalties by token; all arrays are [num_tokens]."""

    token_ids: Int64
    factors: Floats
    reductions: Floats


def _may_not_stop(row: SampleRow) -> bool:
    return row.position < row.params.min_tokens


def _add_biases(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    entries = [
        (index, token_id, bias)
        for index, row in enumerate(rows)
        for token_id, bias in row.params.logit_bias
        if token_id < logits.shape[-1]
    ]
    if entries:
        at, token_ids, biases = zip(*entries, strict=True)
        places = (_ids(at, logits), _ids(token_ids, logits))
        values = torch.tensor(biases, dtype=torch.float32, device=logits.device)
        logits.index_put_(places, values, accumulate=True)


def _penalise(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    found = {
        i: _penalties(row.params, row.history)
        for i, row in enumerate(rows)
        if row.history is not None and row.params.has_penalties
    }
    if not found:
        return
    at = np.repeat(list(found), [len(p.token_ids) for p in found.values()])
    token_ids = np.concatenate([p.token_ids for p in found.values()])
    factors = torch.from_numpy(np.concatenate([p.factors for p in found.values()]))
    reductions = torch.from_numpy(np.concatenate([p.reductions for p in found.values()]))
    places = (_ids(at, logits), _ids(token_ids, logits))
    values = logits[places]  # [num_edits]
    factors = factors.to(logits.device)
    scaled = torch.where(values > 0, values / factors, values * factors)
    logits.index_put_(places, scaled - reductions.to(logits.device))


def _penalties(params: SamplingParams, history: TokenHistory) -> _Penalties:
    counts = history.counts
    reductions = params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    factors = np.full(len(counts), params.repetition_penalty, dtype=np.float32)
    return _Penalties(history.token_ids.astype(np.int64), factors, reductions.astype(np.float32))


def _forbid(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    entries = [
        (index, token_id)
        for index, row in enumerate(rows)
        for token_id in _unwanted(row, logits.shape[-1])
        if token_id < logits.shape[-1]
    ]
    if entries:
        at, token_ids = zip(*entries, strict=True)
        never = torch.tensor(-torch.inf, device=logits.device)
        logits.index_put_((_ids(at, logits), _ids(token_ids, logits)), never)


def _unwanted(row: SampleRow, vocab_size: int) -> list[int]:
    unwanted = forbidden_tokens(row.params, row.history)
    if _may_not_stop(row):
        unwanted += _stops_to_forbid(row, vocab_size)
    return unwanted


def _allow_only(logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
    for index, row in enumerate(rows):
        if row.params.allowed_token_ids:
            allowed = [t for t in row.params.allowed_token_ids if t < logits.shape[-1]]
            kept = _ids(allowed, logits)
            values = logits[index, kept]
            logits[index] = -torch.inf
            logits[index, kept] = values


def _stops_to_forbid(row: SampleRow, vocab_size: int) -> list[int]:
    stops = (*row.eos_token_ids, *row.params.stop_token_ids)
    inside = [token_id for token_id in stops if token_id < vocab_size]
    if row.grammar is None:
        return inside
    allowed = _allowed(row.grammar, vocab_size)
    allowed[inside] = False
    return inside if allowed.any() else []


def _forbid_by_grammar(logits: torch.Tensor, grammar: GrammarState) -> None:
    """`logits` is one row, [vocab]."""
    allowed = torch.from_numpy(_allowed(grammar, len(logits))).to(logits.device)
    logits.masked_fill_(~allowed, -torch.inf)


def _allowed(grammar: GrammarState, vocab_size: int) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(grammar.mask.view(np.uint8), count=vocab_size, bitorder="little")
    return bits.astype(np.bool_)


def _ids(values: Sequence[int] | Int64, logits: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int64, device=logits.device)
