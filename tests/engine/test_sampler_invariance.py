"""A row's token and log-probabilities don't depend on who else is in the batch, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from fakes_cpu_kernels import kernel_threads

from core.request import SamplingParams
from engine.sampler import SampleRow, TokenSampler
from engine.token_history import TokenHistory
from engine.top_tokens import top_tokens

VOCAB = 49_152
MakeSampler = Callable[[int], TokenSampler]
PLAIN = SamplingParams(max_tokens=99)


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"])
def num_threads(request: pytest.FixtureRequest, one_compute_thread: None) -> Iterator[None]:
    """Set after the fixture that makes it one, which also restores it."""
    number: int = request.param
    torch.set_num_threads(number)
    with kernel_threads(number):
        yield


def mixed_rows(num_rows: int) -> list[SampleRow]:
    """Every kind of row, in an order that puts unlike ones side by side."""
    rng = random.Random(7)
    kinds = [
        replace(PLAIN, temperature=0.0),
        PLAIN,
        replace(PLAIN, temperature=0.8, top_p=0.9),
        replace(PLAIN, top_k=50),
        replace(PLAIN, temperature=1.5, top_p=0.999),
        replace(PLAIN, top_k=3000, top_p=0.95),
        replace(PLAIN, min_p=0.05),
        replace(PLAIN, temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.3),
        replace(PLAIN, bad_words=tuple((t,) for t in range(0, VOCAB, 90))),
        replace(PLAIN, temperature=0.0, allowed_token_ids=tuple(range(0, VOCAB, 7))),
    ]
    rows = []
    for index in range(num_rows):
        kind = kinds[index % len(kinds)]
        params = replace(kind, seed=rng.getrandbits(63), logprobs=index % 4)
        history = TokenHistory(rng.choices(range(VOCAB), k=20), rng.choices(range(VOCAB), k=10))
        rows.append(SampleRow(params, index % 3, index, history, index, (2,)))
    rng.shuffle(rows)
    return rows


@pytest.mark.parametrize("tied", [False, True])
def test_a_row_alone_equals_the_row_in_a_mixed_batch(
    make_sampler: MakeSampler, num_threads: None, tied: bool
) -> None:
    generator = torch.Generator().manual_seed(11)
    logits = torch.randn(32, VOCAB, generator=generator) * 3
    if tied:
        logits = logits.bfloat16().float()
    rows, sampler = mixed_rows(32), make_sampler(VOCAB)
    together = sampler.sample(logits, rows)
    for row, expected in zip(rows, together, strict=True):
        own = logits[row.logits_row : row.logits_row + 1].clone()
        assert sampler.sample(own, [row._replace(logits_row=0)]) == [expected]


def test_the_order_of_the_rows_does_not_matter(
    make_sampler: MakeSampler, num_threads: None
) -> None:
    logits = torch.randn(32, VOCAB, generator=torch.Generator().manual_seed(12))
    rows, sampler = mixed_rows(32), make_sampler(VOCAB)
    forwards, backwards = sampler.sample(logits, rows), sampler.sample(logits, rows[::-1])
    assert forwards == backwards[::-1]


@pytest.mark.parametrize("num_tokens", [1, 7, 100, 999, 1000])
def test_top_tokens_have_one_order(num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randint(-3, 4, (6, 1000), generator=generator).float()
    logits[2] = 0.0
    logits[2, ::3] = -0.0  # equal to 0.0, so only the id counts
    logits[3, 5] = -torch.inf
    expected = [
        sorted(range(1000), key=lambda token_id: (-values[token_id], token_id))[:num_tokens]
        for values in logits.tolist()
    ]
    assert top_tokens(logits, num_tokens).tolist() == expected
