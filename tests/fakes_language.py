"""A language model without weights, whose every token depends on its whole context."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.request import (
    Attempt,
    FinishReason,
    PromptLogprobs,
    SamplingParams,
    TokenEvent,
    TokenLogprobs,
)


@dataclass(frozen=True)
class FakeLanguage:
    """Next token = digest(seed, choice, all tokens so far): a wrong resume is a wrong answer.

    `script` fixes the token at some output positions, for stop strings and end tokens.
    """

    vocabulary: range = range(300, 40_000)
    eos_token_id: int = 2
    script: Mapping[int, int] = field(default_factory=dict)

    def next_event(
        self, attempt: Attempt, choice: int, emitted: Sequence[int], *, position: int
    ) -> TokenEvent:
        """The token after `attempt.token_ids + emitted`, as the worker would send it."""
        token_id = self.next_token((*attempt.token_ids, *emitted), attempt.sampling.seed, choice)
        token_id = self.script.get(position, token_id)
        return TokenEvent(
            transfer_id=attempt.transfer_id,
            choice=choice,
            position=position,
            token_id=token_id,
            logprobs=self._logprobs(token_id, attempt.sampling),
            finish_reason=self._finish(token_id, position, attempt.sampling),
        )

    def next_token(self, token_ids: Sequence[int], seed: int, choice: int) -> int:
        data = struct.pack(f"<QI{len(token_ids)}I", seed, choice, *token_ids)
        digest = hashlib.blake2b(data, digest_size=8).digest()
        return self.vocabulary[int.from_bytes(digest, "little") % len(self.vocabulary)]

    def answer(self, prompt: Sequence[int], seed: int, choice: int, length: int) -> list[int]:
        """What an undisturbed run of `length` tokens emits."""
        emitted: list[int] = []
        for position in range(length):
            token_id = self.next_token((*prompt, *emitted), seed, choice)
            emitted.append(self.script.get(position, token_id))
        return emitted

    def prompt_logprobs(self, attempt: Attempt) -> PromptLogprobs | None:
        """What a worker that computes the prompt says of it first, if asked."""
        num_top = attempt.sampling.prompt_logprobs
        if num_top is None or attempt.num_emitted or attempt.num_prompt_tokens == 1:
            return None
        known = attempt.token_ids[1 : attempt.num_prompt_tokens]
        scores = [
            TokenLogprobs(-1.0 - i / 64, tuple((t + 1 + k, -2.0 - k) for k in range(num_top)))
            for i, t in enumerate(known)
        ]
        return PromptLogprobs(attempt.transfer_id, 1, tuple(scores))

    def _logprobs(self, token_id: int, sampling: SamplingParams) -> TokenLogprobs | None:
        if sampling.logprobs is None:
            return None
        top = [(token_id + i, -0.5 - i) for i in range(sampling.logprobs)]
        return TokenLogprobs(-0.5, tuple(top))

    def _finish(
        self, token_id: int, position: int, sampling: SamplingParams
    ) -> FinishReason | None:
        may_stop = position + 1 > sampling.min_tokens
        ends = token_id in sampling.stop_token_ids
        ends |= token_id == self.eos_token_id and not sampling.ignore_eos
        if ends and may_stop:
            return FinishReason.STOP
        return FinishReason.LENGTH if position + 1 >= sampling.max_tokens else None
