"""Beam search, without its effects: which beginnings of an answer to go on with, and when to end.

Every step each active beam offers its best next tokens; the best `width` of all extended beams go
on. One that takes an end token is complete. As in vLLM, a beam's score is its log-probability over
the length of prompt and answer to the power of the length penalty, end tokens not counted, and of
each beam twice as many tokens are looked at as there are beams, so that ends can't use them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class BeamRules:
    """What decides a search. `end_token_ids` is empty where ends are to be ignored."""

    width: int
    max_tokens: int
    num_prompt_tokens: int
    end_token_ids: frozenset[int]
    length_penalty: float = 1.0
    early_stopping: bool = False
    """End with the `width`-th complete beam, even if a better one might come."""


@dataclass(frozen=True, slots=True)
class Beam:
    """A beginning of an answer; `ended` if its last token is an end token."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    total: float = 0.0
    ended: bool = False


class Beams:
    """The search's state: at first one empty beam."""

    def __init__(self, rules: BeamRules) -> None:
        self._rules = rules
        self._num_steps = 0
        self._complete: list[Beam] = []
        self.active: list[Beam] = [Beam()]

    @property
    def num_candidates(self) -> int:
        """Tokens to be looked at of each active beam."""
        return 2 * self._rules.width

    @property
    def done(self) -> bool:
        """Nothing that could still come would be among the best."""
        rules = self._rules
        if not self.active or self._num_steps >= rules.max_tokens:
            return True
        if len(self._complete) < rules.width:
            return False
        if rules.early_stopping:
            return True
        # Totals only fall, so that no beam can end better than this
        longest = rules.num_prompt_tokens + rules.max_tokens
        shortest = rules.num_prompt_tokens + self._num_steps
        length = longest if rules.length_penalty >= 0 else shortest
        possible = max(beam.total for beam in self.active) / _power(length, rules.length_penalty)
        return self._score(self.best()[-1]) >= possible

    def advance(self, found: Sequence[TokenLogprobs]) -> None:
        """One step: `found` has, for each active beam, its best next tokens in `top`."""
        extended: list[Beam] = []
        for beam, logprobs in zip(self.active, found, strict=True):
            for token_id, logprob in logprobs.top[: self.num_candidates]:
                ended = token_id in self._rules.end_token_ids
                longer = Beam(
                    (*beam.token_ids, token_id),
                    (*beam.logprobs, TokenLogprobs(logprob, logprobs.top)),
                    beam.total + logprob,
                    ended,
                )
                (self._complete if ended else extended).append(longer)
        self._num_steps += 1
        self.active = self._ranked(extended)

    def best(self) -> list[Beam]:
        """The `width` best beams, complete ones and, where the search has ended, active ones."""
        ended = not self.active or self._num_steps >= self._rules.max_tokens
        return self._ranked(self._complete + (self.active if ended else []))

    def _ranked(self, beams: Sequence[Beam]) -> list[Beam]:
        """Of equals, the first found."""
        return sorted(beams, key=self._score, reverse=True)[: self._rules.width]

    def _score(self, beam: Beam) -> float:
        length = self._rules.num_prompt_tokens + len(beam.token_ids) - beam.ended
        return beam.total / _power(length, self._rules.length_penalty)


def _power(length: int, penalty: float) -> float:
    return float(length**penalty)
