"""A request, the attempts made to serve it, and the events an attempt yields.

    Request (router)  one client request, n choices
      Attempt         one try on a pair (P, D), named by `transfer_id`; covers one or more choices
        TokenEvent    choice, position, token: position counts output tokens from 0
        AttemptDone / AttemptFailed   the terminal event of one leg

Nothing of a sequence's sampler state ever travels: it follows from `SamplingParams.seed`, the
choice, and the token ids emitted so far.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

BACKGROUND_PRIORITY = 500
"""Attempts from here on, such as those of batches, run in what all others leave. The router keeps a
client's own priority on its side of it."""


class FinishReason(enum.StrEnum):
    """Why a choice ended; the values are OpenAI's."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


class Phase(enum.StrEnum):
    """The two legs of an attempt, and so the two roles of a worker."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Every value is resolved (no None that means 'default').

    `top_k` 0 keeps the whole vocabulary; `logprobs` None asks for none, 0 for the sampled token's
    only, k > 0 for the k best as well. `max_tokens` counts output tokens of each choice.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that the output never completes."""
    allowed_token_ids: tuple[int, ...] = ()
    """If there are any, no others are sampled."""
    prompt_logprobs: int | None = None
    """As `logprobs`, of the prompt's own tokens; all of it is then computed, cached or not."""
    changes_logits: bool = field(init=False, repr=False, compare=False)
    """Anything but the model decides logits at every position: asked for every token, so kept."""

    def __post_init__(self) -> None:
        changes = self.has_penalties or bool(
            self.logit_bias or self.bad_words or self.allowed_token_ids
        )
        object.__setattr__(self, "changes_logits", changes)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether what was seen before changes the logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def needs_history(self) -> bool:
        """Whether sampling looks at tokens before."""
        return self.has_penalties or any(len(word) > 1 for word in self.bad_words)


@dataclass(frozen=True, slots=True)
class PinnedPrefix:
    """The first `num_tokens` tokens of a prompt, for `ttl_s` after they were computed."""

    num_tokens: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class PinWish:
    """What of a prompt's KV is to stay cached with the worker that computes it, for whom."""

    prefixes: tuple[PinnedPrefix, ...]
    owner: str = ""
    max_owned_tokens: int | None = None
    """Most tokens that the owner may have pinned on this worker; None: no limit."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a request: what a worker is asked to run.

    `token_ids` is the prompt followed by what was already emitted; the first `num_prompt_tokens` of
    it are the client's prompt. An attempt that covers several choices has emitted nothing yet
    (`len(token_ids) == num_prompt_tokens`); an attempt that resumes covers exactly one choice.
    """

    request_id: str
    transfer_id: str
    model: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    choices: tuple[int, ...]
    sampling: SamplingParams
    deadline_s: float
    """Time left when it was sent; a duration, since clocks differ between machines."""
    priority: int = 0
    """Lower is served first, as in vLLM."""
    cache_salt: str = ""
    tenant: str = ""
    adapter: str = ""
    trace_context: str = ""
    grammar: str = ""
    """What every choice's output follows, as `text.structure` writes it; empty: anything goes."""
    pins: PinWish | None = None
    """None: nothing was asked to be pinned."""

    def __post_init__(self) -> None:
        assert self.choices, "an attempt covers at least one choice"
        assert 0 < self.num_prompt_tokens <= len(self.token_ids)
        assert len(self.choices) == 1 or len(self.token_ids) == self.num_prompt_tokens

    @property
    def num_emitted(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def in_background(self) -> bool:
        """Whether others wait for no more of it than its step that is under way."""
        return self.priority >= BACKGROUND_PRIORITY


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities at one position: the sampled token's, and the best alternatives."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class TokenEvent:
    """One token of one choice. `position` is its index among the choice's output tokens.

    Nobody changes one; it is not frozen, since that takes three times as long to make.
    """

    transfer_id: str
    choice: int
    position: int
    token_id: int
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None
    """Set on the choice's last token; nothing follows it."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of the prompt's tokens from index `start` on, 1 or more: nothing predicts the first one.

    They come in order, a chunk at a time, all before the attempt's first token.
    """

    transfer_id: str
    start: int
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Pinned:
    """What became of an attempt's `PinWish`; it comes before the first token.

    `num_tokens` is the longest prefix that stays cached, 0: none. `token_seconds` says by how much
    longer than before, in seconds, for each of its tokens, added up.
    """

    transfer_id: str
    num_tokens: int
    token_seconds: float


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt is over on this worker without finishing all choices."""

    transfer_id: str
    code: str
    message: str
    retryable: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LegTimings:
    """Durations of one leg in seconds, as the worker saw them."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    transfer_s: float = 0.0
    """From opening the pull to the last block's arrival; much of it may lie behind the prefill."""
    handoff_s: float = 0.0
    """From the end of P's last chunk to the start of D's first step: what overlap can't hide."""


@dataclass(frozen=True, slots=True)
class AttemptDone:
    """A worker holds nothing more for the attempt that needs the router: sent last by each leg.

    On P: all choices have their first token. On D: every choice it ran has finished.
    """

    transfer_id: str
    timings: LegTimings = field(default_factory=LegTimings)
