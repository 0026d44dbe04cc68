"""One choice on its way through the checks of its tokens.

    its tokens    > told, until one is suspicious: that one is withheld while others are drawn
    it stands     > told
    another does  > told in its place; the choice's work is cancelled, and goes on after that token
    none does     > the choice ends before it

The client's choice takes only tokens that stand: its text, its stop strings and its usage know of
no others.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from core.clock import Clock
from core.request import FinishReason, TokenEvent, TokenLogprobs
from router.guard.resampling.policy_draws import NoDrawError, PolicyDraws
from router.guard.resampling.rules import ResampleRules
from router.guard.resampling.token_check import CheckOutcome, Token, TokenCheck
from router.guard.resampling.token_watch import TokenWatch
from router.life.check_timeline import CheckTimeline
from router.life.choice import Choice, Delta

TokensAfter = Callable[[int, Sequence[int]], AsyncGenerator[Token, None]]
"""The tokens of a choice of this number after these; closing it cancels the work."""


class CheckedChoice:
    """Iterate `deltas` once, and close it."""

    def __init__(
        self,
        choice: Choice,
        rules: ResampleRules,
        watch: TokenWatch | None,
        draws: PolicyDraws,
        tokens_after: TokensAfter,
        told_logprobs: int | None,
        note: Callable[[CheckTimeline], None],
        clock: Clock,
    ) -> None:
        """`told_logprobs`: what the client asked for. `note` hears of every check."""
        self._choice = choice
        self._rules = rules
        self._watch = watch
        self._draws = draws
        self._tokens_after = tokens_after
        self._told_logprobs = told_logprobs
        self._note = note
        self._clock = clock
        self._num_checks = 0

    async def deltas(self, tokens: AsyncGenerator[Token, None]) -> AsyncGenerator[Delta, None]:
        """What the client is to hear of the choice whose work gives these tokens."""
        self._choice.begin_attempt()
        while True:
            async with aclosing(tokens):
                async for token in tokens:
                    stands = await self._standing(token)
                    yield self._end() if stands is None else self._taken(stands)
                    if self._choice.ended:
                        return
                    if stands is not token:
                        break
                else:
                    raise AssertionError("the tokens of a choice ended before it did")
            tokens = self._tokens_after(self._choice.index, self._choice.token_ids)

    async def _standing(self, token: Token) -> Token | None:
        """What is told in this token's place, itself included; None: nothing any more."""
        before, self._watch = self._watch, self._after(self._watch, token)
        if not self._suspicious(self._watch):
            return token
        check = TokenCheck(self._rules, token)
        began = self._clock.now()
        if self._num_checks == self._rules.max_checks:
            check.failed(CheckOutcome.EXHAUSTED)
        else:
            self._num_checks += 1
            await self._draw(check, before)
        if check.stands is not None and check.stands is not token:
            self._watch = self._after(before, check.stands)
        self._tell(check, began)
        return check.stands

    async def _draw(self, check: TokenCheck, before: TokenWatch | None) -> None:
        """Until the check has its outcome."""
        choice = self._choice
        while check.outcome is None:
            try:
                drawn = await self._draws.draw(choice.index, choice.token_ids, check.next_number)
            except NoDrawError as error:
                check.failed(error.outcome)
                return
            after = self._after(before, drawn)
            check.drawn(drawn, suspicious=after is not None and after.suspicious)

    def _suspicious(self, watch: TokenWatch | None) -> bool:
        among_first = len(self._choice.token_ids) < self._rules.first_tokens
        return among_first or (watch is not None and watch.suspicious)

    @staticmethod
    def _after(watch: TokenWatch | None, token: Token) -> TokenWatch | None:
        return None if watch is None else watch.after(token.token_id)

    def _taken(self, token: Token) -> Delta:
        choice, told = self._choice, self._told_logprobs
        logprobs = None
        if told is not None:
            logprobs = TokenLogprobs(token.logprobs.logprob, token.logprobs.top[:told])
        position = len(choice.token_ids)
        event = TokenEvent(
            "", choice.index, position, token.token_id, logprobs, token.finish_reason
        )
        delta = choice.accept(event)
        assert delta is not None, "the next token of a choice that goes on"
        return delta

    def _end(self) -> Delta:
        self._choice.cancel()
        return Delta(self._choice.index, "", (), finish_reason=FinishReason.CONTENT_FILTER)

    def _tell(self, check: TokenCheck, began: float) -> None:
        assert check.outcome is not None
        self._note(
            CheckTimeline(
                choice=self._choice.index,
                position=len(self._choice.token_ids),
                began=began,
                ended=self._clock.now(),
                divergence=check.divergence,
                num_resamples=check.num_resamples,
                outcome=check.outcome,
            )
        )
