"""How well a model, as it is served, predicts a text: exp of the mean negative log-likelihood.

    | window 0          | window 1          | ...     each token is predicted from those before it
      ^ not scored        ^ not scored              in its window; a window's first token is not

Windows don't overlap, so that every token is computed once. Each runs through the engine's own
steps, chunk by chunk over the paged KV cache: what KV and weights lose by their types is measured.
Models that begin texts with a token of their own find it at the head of every window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from bench.progress import Progress
from core.config import Config
from core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from engine.batch import StepInput

# Rows of logits at once: 50 MB of a vocabulary of 49,152.
_CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Perplexity:
    """What one configuration made of a text."""

    model: str
    precision: str
    """As in `int4-g32 in bfloat16, KV int8`."""
    num_tokens: int
    """Of the text; the first of each window is context only."""
    num_scored: int
    window: int
    mean_nll: float
    """Negative log-likelihood in nats, per token."""
    duration_s: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.mean_nll)


@dataclass(frozen=True, slots=True)
class PerplexityReport:
    """One measurement, perhaps beside another that it is held against."""

    measured: Perplexity
    reference: Perplexity | None

    @property
    def relative_difference(self) -> float | None:
        """Of the perplexity to the reference's: 0.01 is 1 % worse."""
        if self.reference is None:
            return None
        return self.measured.perplexity / self.reference.perplexity - 1


class Runner(Protocol):
    """What computes steps: `engine.runner.ModelRunner`."""

    def compute(self, step: StepInput) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class TokenText:
    """A text as a model reads it."""

    token_ids: Sequence[int]
    begin: Sequence[int]
    """What the model expects before every text: a begin token, or nothing."""


def tokenise(config: Config, text: str, max_tokens: int | None) -> TokenText:
    """The text's first `max_tokens` tokens. Raises ConfigError if there are fewer than two."""
    from text.hub import resolve
    from text.model_card import load_card
    from text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(load_card(resolve(config.model)))
    token_ids = tokenizer.encode(text, add_special_tokens=False)[:max_tokens]
    if len(token_ids) < 2:
        raise ConfigError("the text has fewer than two tokens")
    begin = tokenizer.encode("", add_special_tokens=True)[:1]
    return TokenText(token_ids, begin if begin == [tokenizer.bos_token_id] else ())


def measure(config: Config, text: TokenText, *, window: int, progress: Progress) -> Perplexity:
    """Loads the configured model and scores the text. Raises TandemError."""
    from core.clock import MonotonicClock
    from engine.builder import build_engine, model_len
    from text.hub import resolve
    from text.model_card import load_card

    card = load_card(resolve(config.model))
    limit = model_len(config, card)
    if not 2 <= window <= limit:
        raise ConfigError(f"a window of {window} tokens is not in 2 .. {limit}")
    engine = build_engine(for_one_sequence(config, limit), card, num_sharers=1, progress=progress)
    clock = MonotonicClock()
    started_s = clock.now()
    total, scored = 0.0, 0
    parts = windows(text.token_ids, window - len(text.begin))
    for i, part in enumerate(parts):
        nlls = token_nlls(engine.runner, [*text.begin, *part], engine.spec.block_size)
        total, scored = total + float(nlls.sum()), scored + len(nlls)
        progress(f"window {i + 1} of {len(parts)}: perplexity {math.exp(total / scored):.4f}")
    return Perplexity(
        model=card.name,
        precision=_precision(config, str(engine.storage.spec.dtype)),
        num_tokens=len(text.token_ids),
        num_scored=scored,
        window=window,
        mean_nll=total / scored,
        duration_s=clock.now() - started_s,
    )


def windows(token_ids: Sequence[int], size: int) -> list[Sequence[int]]:
    """Windows of `size` tokens, the last of which may be shorter, but never of a single token."""
    parts = [token_ids[start : start + size] for start in range(0, len(token_ids), size)]
    return parts[:-1] if len(parts[-1]) < 2 else parts


def token_nlls(
    runner: Runner, token_ids: Sequence[int], block_size: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """-log p of each token but the first, given those before it. float64 [n - 1].

    The sequence takes the storage's first blocks, whatever they held.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    nlls = []
    for start in range(0, len(ids), _CHUNK_TOKENS):
        end = min(start + _CHUNK_TOKENS, len(ids))
        logits = runner.compute(_step(ids, start, end, block_size))  # [end - start, vocab]
        targets = ids[start + 1 : end + 1]  # the last token predicts nothing
        rows = logits[: len(targets)].double()
        chosen = rows[np.arange(len(targets)), targets]
        nlls.append((rows.logsumexp(dim=-1) - chosen).cpu().numpy())
    return np.concatenate(nlls)


def for_one_sequence(config: Config, max_model_len: int) -> Config:
    """The configuration with a pool and steps that are just large enough for one sequence."""
    num_blocks = -(-max_model_len // config.cache.block_size)
    cache = config.cache.model_copy(update={"num_blocks": num_blocks})
    scheduler = config.scheduler.model_copy(
        update={
            "max_num_seqs": 1,
            "max_num_batched_tokens": _CHUNK_TOKENS + 1,
            "prefill_chunk_tokens": _CHUNK_TOKENS,
        }
    )
    return config.model_copy(update={"cache": cache, "scheduler": scheduler})


def _step(
    ids: np.ndarray[tuple[int], np.dtype[np.int64]], start: int, end: int, block_size: int
) -> StepInput:
    """Tokens start .. end of a sequence in blocks 0, 1, 2, ..., with logits for all of them."""
    from engine.batch import StepInput

    positions = np.arange(start, end, dtype=np.int64)
    return StepInput(
        token_ids=ids[start:end],
        positions=positions,
        query_starts=np.array([0, end - start], dtype=np.int32),
        context_lens=np.array([end], dtype=np.int32),
        block_tables=np.arange(-(-end // block_size), dtype=np.int32).reshape(1, -1),
        slot_mapping=positions,
        logits_rows=np.arange(end - start, dtype=np.int64),
        num_decode=1 if end - start == 1 else 0,
    )


def _precision(config: Config, kv_dtype: str) -> str:
    model = config.model
    group = f"-g{model.quantization_group_size}" if model.quantization == "int4" else ""
    calibrated = "" if model.calibration is None else " calibrated"
    return f"weights {model.quantization}{group}{calibrated}, dtype {model.dtype}, KV {kv_dtype}"
