"""The sampler's rules once more, slowly: one row at a time, in numpy and double precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from engine.random_numbers import uniform
from engine.sample_row import SampleRow
from engine.token_history import TokenHistory

Floats = npt.NDArray[np.float64]


def edited_logits(logits: Floats, row: SampleRow) -> Floats:
    """Bias, penalties and what must not be sampled, token by token, [vocab]."""
    params, edited = row.params, logits.copy()
    for token_id, bias in params.logit_bias:
        edited[token_id] += bias
    history = row.history or TokenHistory(())
    for token_id, count in zip(history.token_ids, history.counts, strict=True):
        value = edited[token_id]
        penalty = params.repetition_penalty
        value = value / penalty if value > 0 else value * penalty
        value -= params.frequency_penalty * count
        value -= params.presence_penalty * (count > 0)
        edited[token_id] = value
    if row.position < params.min_tokens:
        edited[[*row.eos_token_ids, *params.stop_token_ids]] = -np.inf
    for *before, last in params.bad_words:
        if history.ends_with(before):
            edited[last] = -np.inf
    if params.allowed_token_ids:
        others = np.ones(len(edited), dtype=bool)
        others[list(params.allowed_token_ids)] = False
        edited[others] = -np.inf
    return edited


def distribution(logits: Floats, row: SampleRow) -> Floats:
    """Probabilities from which the row's token is drawn, [vocab]."""
    params, edited = row.params, edited_logits(logits, row)
    order = sorted(range(len(edited)), key=lambda token_id: (-edited[token_id], token_id))
    if params.temperature == 0:
        params = replace(params, temperature=1.0, top_k=1)
    weights = np.exp((edited - edited.max()) / params.temperature)
    kept = [token_id for token_id in order if weights[token_id] >= params.min_p]
    kept = kept[: params.top_k] if params.top_k else kept
    if params.top_p < 1:
        mass = np.cumsum([weights[token_id] for token_id in kept])
        before = mass - [weights[token_id] for token_id in kept]
        kept = [t for i, t in enumerate(kept) if i == 0 or before[i] < params.top_p * mass[-1]]
    probabilities = np.zeros(len(edited))
    probabilities[kept] = weights[kept]
    normalised: Floats = probabilities / probabilities.sum()
    return normalised


def choose(logits: Floats, row: SampleRow) -> int:
    """The token whose share of [0, 1), in vocabulary order, contains the row's random number."""
    number = uniform([row.params.seed], [row.choice], [row.position])[0]
    return int(np.searchsorted(np.cumsum(distribution(logits, row)), number, side="right"))


def log_probabilities(logits: Floats) -> Floats:
    """Log-softmax of the model's own logits, [vocab]."""
    shifted = logits - logits.max()
    result: Floats = shifted - np.log(np.exp(shifted).sum())
    return result
