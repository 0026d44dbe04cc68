"""The sampler for CPUs: rows become bytes, one compiled call draws all their tokens.

The same rules as `engine.sampler.Sampler`, whose tests it shares: a token is a function of its own
logits, parameters, choice and position. A random choice may differ from the torch sampler's where
the number drawn falls on the rounding error of a border between two tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from tandem_kernels.cpu.sampling import Choices, CpuSampling, Int32, PackedParams, pack_row

from core.request import SamplingParams, TokenLogprobs
from engine.logit_edits import forbidden_tokens
from engine.sample_row import SampleRow
from engine.sampler import MIN_TEMPERATURE, NonFiniteLogitsError, Sampled

_NOTHING_SEEN = (0, 0, 0)
_MAX_KEPT = 4096
"""Requests whose packed parameters are kept: more than ever run at once."""


class CompiledSampler:
    """Chooses tokens from a vocabulary of `vocab_size`; a request's parameters are packed once."""

    def __init__(self, vocab_size: int, kernel: CpuSampling) -> None:
        self.vocab_size = vocab_size
        self._kernel = kernel
        # By identity, beside the object that has it, since hashing many values takes longer
        self._packed: dict[int, tuple[SamplingParams, PackedParams]] = {}

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
        """One token for each of `rows`, in their order; `logits` is [R, vocab] float32, unchanged.

        Raises NonFiniteLogitsError, which names the rows, if a row's logits have no finite maximum.
        """
        if not rows:
            return []
        assert logits.shape[1] == self.vocab_size
        packed = [self._pack(row.params, row.eos_token_ids) for row in rows]
        parts: list[bytes] = []
        kept: list[Int32] = []  # what addresses in `parts` point to
        for row, own in zip(rows, packed, strict=True):
            mask = 0 if row.grammar is None else row.grammar.address
            history = row.history
            seen = _NOTHING_SEEN if history is None else history.addresses()
            parts.append(pack_row(row.logits_row, row.choice, row.position, seen, mask))
            if history is not None and row.params.bad_words:
                unwanted = np.array(forbidden_tokens(row.params, history), dtype=np.int32)
                kept.append(unwanted)
                parts.append(own.forbidding(unwanted))
            else:
                parts.append(own.bytes)
        most = min(self.vocab_size, max(own.num_top for own in packed))
        choices = self._kernel(logits, b"".join(parts), len(rows), most)
        _check_finite(choices)
        return [
            Sampled(token_id, _logprobs(choices, i, row.params.logprobs))
            for i, (token_id, row) in enumerate(zip(choices.token_ids, rows, strict=True))
        ]

    def _pack(self, params: SamplingParams, eos_token_ids: tuple[int, ...]) -> PackedParams:
        kept = self._packed.get(id(params))
        if kept is not None and kept[0] is params:
            return kept[1]
        if len(self._packed) >= _MAX_KEPT:
            self._packed.clear()
        packed = PackedParams(params, eos_token_ids, min_temperature=MIN_TEMPERATURE)
        self._packed[id(params)] = (params, packed)
        return packed


def _check_finite(choices: Choices) -> None:
    if -1 in choices.token_ids:
        bad = (i for i, token_id in enumerate(choices.token_ids) if token_id == -1)
        raise NonFiniteLogitsError(tuple(bad))


def _logprobs(choices: Choices, i: int, wanted: int | None) -> TokenLogprobs | None:
    if wanted is None:
        return None
    ids, logprobs = choices.top_ids[i, :wanted], choices.top_logprobs[i, :wanted]
    top = tuple(zip(ids.tolist(), logprobs.tolist(), strict=True))
    return TokenLogprobs(float(choices.logprobs[i]), top)
