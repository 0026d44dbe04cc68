"""What is drawn follows the distribution that was asked for, over many fixed counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from reference_sampler import distribution

from core.request import SamplingParams
from engine.sampler import SampleRow, TokenSampler

VOCAB = 64
NUM_DRAWS = 20_000
MakeSampler = Callable[[int], TokenSampler]


Counts = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]


def counts_of(
    sampler: TokenSampler,
    logits: torch.Tensor,
    params: list[SamplingParams],
    positions: list[int],
) -> Counts:
    rows = [
        SampleRow(own, 0, position, None, 0, (2,))
        for own, position in zip(params, positions, strict=True)
    ]
    tokens = [s.token_id for s in sampler.sample(logits, rows)]
    return np.bincount(tokens, minlength=VOCAB)


def chi_square(counts: Counts, probabilities: Probabilities) -> tuple[float, int]:
    """The statistic and its degrees of freedom; rare tokens are pooled."""
    expected = probabilities * NUM_DRAWS
    common = expected >= 5
    cells = np.append(counts[common], counts[~common].sum())
    means = np.append(expected[common], expected[~common].sum())
    cells, means = cells[means > 0], means[means > 0]
    return float(((cells - means) ** 2 / means).sum()), len(cells) - 1


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=1, temperature=0.5),
        SamplingParams(max_tokens=1, temperature=3.0),
        SamplingParams(max_tokens=1, top_k=12),
        SamplingParams(max_tokens=1, top_p=0.8),
        SamplingParams(max_tokens=1, min_p=0.05),
        SamplingParams(max_tokens=1, temperature=1.7, top_k=40, top_p=0.95, min_p=0.01),
    ],
)
@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_frequencies_match_probabilities(
    make_sampler: MakeSampler, params: SamplingParams, along: str
) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2)) * 1.5
    row = SampleRow(params, 0, 0, None, 0, (2,))
    probabilities = distribution(logits[0].double().numpy(), row)
    if along == "positions":
        counts = counts_of(
            make_sampler(VOCAB), logits, [params] * NUM_DRAWS, list(range(NUM_DRAWS))
        )
    else:
        counts = counts_of(make_sampler(VOCAB), logits, with_seeds(params), [0] * NUM_DRAWS)
    statistic, freedom = chi_square(counts, probabilities)
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)
    assert not counts[probabilities == 0].any()


def with_seeds(params: SamplingParams) -> list[SamplingParams]:
    return [replace(params, seed=seed) for seed in range(NUM_DRAWS)]
