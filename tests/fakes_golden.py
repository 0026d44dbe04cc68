"""Requests whose answers are known: what to ask, what came back, and whether it is right.

Right means token for token what a lone engine answers, with one allowance: batches of different
sizes sum in different orders, so where two candidates are as good as equal either may come. That
is judged anew from the logits at the first difference, and only there (`is_tie`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from reference_sampler import distribution, edited_logits

from core.request import Attempt, SamplingParams, TokenLogprobs
from engine.random_numbers import uniform
from engine.sample_row import SampleRow
from engine.token_history import TokenHistory
from protos import inference_pb2 as pb

Floats = npt.NDArray[np.float64]
NextLogits = Callable[[Sequence[int]], Floats]
"""The model's logits [vocab] for the token after these."""

TIE = 1e-4
"""Of logits, and of probability: an order of magnitude above what float32 sums differ by."""
LOGPROB_TOLERANCE = 1e-3
EOS_TOKEN_IDS = (2,)
"""The default model's."""


@dataclass(frozen=True)
class Ask:
    """A request, as a client sends it and as a lone engine takes it."""

    name: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    n: int = 1
    bad_words: tuple[str, ...] = ()
    """What `sampling.bad_words` spell."""

    def attempt(self, choices: tuple[int, ...]) -> Attempt:
        return Attempt(
            request_id=self.name,
            transfer_id=self.name,
            model="",
            token_ids=self.token_ids,
            num_prompt_tokens=len(self.token_ids),
            choices=choices,
            sampling=self.sampling,
            deadline_s=1e6,
        )

    def to_json(self, model: str, cache_salt: str = "") -> dict[str, object]:
        """The body of /v1/completions."""
        sampling = self.sampling
        return {
            "model": model,
            "prompt": list(self.token_ids),
            "n": self.n,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "logit_bias": {str(token_id): bias for token_id, bias in sampling.logit_bias},
            "logprobs": sampling.logprobs,
            "seed": sampling.seed,
            "min_tokens": sampling.min_tokens,
            "ignore_eos": sampling.ignore_eos,
            "bad_words": list(self.bad_words),
            "allowed_token_ids": list(sampling.allowed_token_ids) or None,
            "cache_salt": cache_salt,
        }

    def to_wire(self, model: str, cache_salt: str = "") -> pb.CompleteRequest:
        sampling = self.sampling
        return pb.CompleteRequest(
            model=model,
            token_ids=pb.TokenIds(ids=self.token_ids),
            sampling=pb.Sampling(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                presence_penalty=sampling.presence_penalty,
                frequency_penalty=sampling.frequency_penalty,
                repetition_penalty=sampling.repetition_penalty,
                logit_bias=dict(sampling.logit_bias),
                logprobs=sampling.logprobs,
                seed=sampling.seed,
                min_tokens=sampling.min_tokens,
                ignore_eos=sampling.ignore_eos,
                bad_words=self.bad_words,
                allowed_token_ids=sampling.allowed_token_ids,
            ),
            max_tokens=sampling.max_tokens,
            n=self.n,
            cache_salt=cache_salt,
            include_timings=True,
        )


@dataclass
class ChoiceAnswer:
    """What one choice got."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: str = ""


@dataclass(frozen=True)
class Answer:
    """What a request got; a lone engine has no usage to tell."""

    choices: list[ChoiceAnswer]
    usage: pb.Usage | None = None

    @property
    def num_attempts(self) -> int:
        assert self.usage is not None
        return self.usage.timings.attempts


def check(ask: Ask, expected: Answer, actual: Answer, next_logits: NextLogits) -> None:
    """Fails the test if `actual` is not what `expected` says, ties apart."""
    assert len(actual.choices) == len(expected.choices) == ask.n, ask.name
    for choice, (right, got) in enumerate(zip(expected.choices, actual.choices, strict=True)):
        num_equal = check_tokens(ask, choice, right.token_ids, got.token_ids, next_logits)
        if num_equal == len(right.token_ids):
            assert got.finish_reason == right.finish_reason, f"{ask.name}/{choice}"
        check_logprobs(ask, choice, right.logprobs[:num_equal], got.logprobs)


def check_tokens(
    ask: Ask, choice: int, expected: Sequence[int], actual: Sequence[int], next_logits: NextLogits
) -> int:
    """How many tokens can be compared: all, or those before a tie. Fails at any other difference.

    An output that ends early or goes on too long is never excused.
    """
    place = f"{ask.name}, choice {choice}"
    differing = (i for i, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b)
    position = next(differing, None)
    if position is None:
        assert len(actual) == len(expected), f"{place}: {len(actual)} of {len(expected)} tokens"
        return len(expected)
    emitted = tuple(expected[:position])
    logits = next_logits((*ask.token_ids, *emitted))
    history = TokenHistory(ask.token_ids, emitted)
    row = SampleRow(ask.sampling, choice, position, history, 0, EOS_TOKEN_IDS)
    candidates = (expected[position], actual[position])
    assert is_tie(logits, row, candidates), f"{place}, position {position}: {candidates}"
    return position


def is_tie(logits: Floats, row: SampleRow, candidates: tuple[int, int]) -> bool:
    """Whether rounding decides between the two: both best, or the draw on their very border."""
    if row.params.greedy:
        edited = edited_logits(logits, row)
        return bool(min(edited[list(candidates)]) > edited.max() - TIE)
    probabilities = distribution(logits, row)
    first, second = sorted(candidates)
    if not (probabilities[first] > 0 and probabilities[second] > 0):
        return False
    cumulative = np.cumsum(probabilities)
    number = uniform([row.params.seed], [row.choice], [row.position])[0]
    end, begin = cumulative[first], cumulative[second] - probabilities[second]
    return bool(abs(number - end) < TIE and abs(number - begin) < TIE)


def check_logprobs(
    ask: Ask, choice: int, expected: list[TokenLogprobs], actual: list[TokenLogprobs]
) -> None:
    """Every compared token has its log-probabilities, if they were asked for, and none if not."""
    if ask.sampling.logprobs is None:
        assert actual == []
    for position, right in enumerate(expected):
        got = actual[position]
        place = f"{ask.name}, choice {choice}, position {position}"
        assert abs(got.logprob - right.logprob) < LOGPROB_TOLERANCE, place
        assert len(got.top) == ask.sampling.logprobs, place
        pairs = zip(got.top, right.top, strict=True)
        assert all(abs(a - b) < LOGPROB_TOLERANCE for (_, a), (_, b) in pairs), place
