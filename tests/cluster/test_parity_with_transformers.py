"""The whole engine against transformers: greedy tokens and log-probabilities of the real model.

Fifty prompts run through one engine at once, coming and going as a server's do: prompts in chunks
among running sequences, 32 at a time. The oracle reads each prompt with our output in one pass, so
both always judge the same context.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from fakes_oracle import Opinion, load_oracle
from fakes_prompts import PROMPTS
from transformers import PreTrainedModel

from core.config import load_config
from core.request import Attempt, SamplingParams, TokenEvent
from decode_worker.offline import OfflineEngine
from text.hub import ModelSource
from text.model_card import load_card
from text.tokenizer import load_tokenizer

NUM_CORES = 2
"""One for the engine while another loads the oracle; both for the oracle's reading."""
NUM_TOKENS = 64
TIE = 1e-4
"""Logits closer than this may come in either order: float32 sums differ by some 1e-5."""
LOGPROB_TOLERANCE = 1e-3
SETTINGS = [
    "parallel.num_threads=1",
    "model.dtype=float32",
    "model.max_model_len=512",
    "cache.num_blocks=1024",
    "scheduler.max_num_seqs=32",
    "scheduler.max_num_batched_tokens=160",
    "scheduler.prefill_chunk_tokens=128",
]


@dataclass(frozen=True)
class Compared:
    """One prompt: our tokens, and the oracle's opinion of them."""

    prompt: str
    tokens: list[TokenEvent]
    best: list[int]
    shortfall: list[float]
    logprob_errors: list[float]
    """Largest difference at each position, of the token and our best five."""
    best_five_errors: list[float]
    """Largest difference at each position between our five highest values and its own."""


@pytest.fixture(scope="module")
def compared(default_model_source: ModelSource) -> list[Compared]:
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(load_card(default_model_source))
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    with ThreadPoolExecutor(NUM_CORES) as cores:
        loading = cores.submit(load_oracle, default_model_source.path)
        outputs = greedy(prompts)
        oracle = loading.result()
        return list(cores.map(partial(compare, oracle), PROMPTS, prompts, outputs))


def greedy(prompts: list[list[int]]) -> list[list[TokenEvent]]:
    """All prompts through one engine, each NUM_TOKENS further, end of text or not."""
    engine = OfflineEngine.load(load_config(environ={}, overrides=SETTINGS))
    sampling = SamplingParams(NUM_TOKENS, temperature=0.0, logprobs=5, ignore_eos=True)
    attempts = [
        Attempt("r", str(i), "default", tuple(ids), len(ids), (0,), sampling, deadline_s=1e6)
        for i, ids in enumerate(prompts)
    ]
    outputs = engine.generate(attempts)
    return [outputs[attempt.transfer_id, 0] for attempt in attempts]


def compare(
    oracle: PreTrainedModel, text: str, prompt: list[int], tokens: list[TokenEvent]
) -> Compared:
    opinion = Opinion.of(oracle, prompt, [token.token_id for token in tokens])
    errors, best_five_errors = [], []
    for token, row in zip(tokens, opinion.logprobs, strict=True):
        assert token.logprobs is not None and len(token.logprobs.top) == 5
        ours = [(token.token_id, token.logprobs.logprob), *token.logprobs.top]
        errors.append(max(abs(float(row[i]) - logprob) for i, logprob in ours))
        values = torch.tensor([logprob for _, logprob in token.logprobs.top])
        best_five_errors.append(float((values - row.topk(5).values).abs().max()))
    return Compared(text, tokens, opinion.best, opinion.shortfall, errors, best_five_errors)


def test_the_prompts_are_fifty_and_differ() -> None:
    assert len(PROMPTS) == len(set(PROMPTS)) == 50


def test_greedy_tokens_equal_transformers(compared: list[Compared]) -> None:
    wrong = [
        (row.prompt, position, token.token_id, row.best[position], row.shortfall[position])
        for row in compared
        for position, token in enumerate(row.tokens)
        if token.token_id != row.best[position] and row.shortfall[position] >= TIE
    ]
    assert wrong == []


def test_every_prompt_is_continued_to_the_end(compared: list[Compared]) -> None:
    for row in compared:
        assert [token.position for token in row.tokens] == list(range(NUM_TOKENS))


def test_log_probabilities_equal_transformers(compared: list[Compared]) -> None:
    assert max(max(row.logprob_errors) for row in compared) < LOGPROB_TOLERANCE
    assert max(max(row.best_five_errors) for row in compared) < LOGPROB_TOLERANCE
