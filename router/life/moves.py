"""Choices of one request on their way from draining decode workers to others.

ask       D drains, and another one could take over: D is asked to let go, once
offered   D keeps the choice's KV; once all its tokens are here, an attempt follows the KV
let go    D has no KV for the choice: it queues for a pair
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator

from core.handoff import Handoff, Moved
from router.fleet.sessions import WorkerSession
from router.fleet.worker_pair import WorkerPair
from router.life.attempt_run import AttemptRun
from router.life.choice import Choice
from router.life.placement import Placement


class MoveOutcome(enum.StrEnum):
    """What came of a choice that a draining decode worker let go of."""

    PULLED = "pulled"
    """It went on elsewhere with its KV."""
    FAILED = "failed"
    """Its KV could not be pulled, and was computed anew."""
    GIVEN_BACK = "given_back"
    """It had no KV to be pulled: it waited, or was being imported or computed."""


class Moves:
    """Decides who follows whom. Attempts that follow KV are yielded one by one: each has to be
    begun before the next is decided on."""

    def __init__(self, placement: Placement) -> None:
        self.outcomes: Counter[MoveOutcome] = Counter()
        self._placement = placement

    def ask(self, runs: Iterable[AttemptRun]) -> bool:
        """Asks draining workers to let go of what another one could take over now.

        Without another one it runs on where it is, until one comes or the drain ends. Whether there
        is such an attempt.
        """
        staying = False
        for run in [run for run in runs if run.wants_to_move]:
            source = _source(run)
            if self._placement.could_follow(run.unfinished, source.member.compat_key):
                run.ask_to_move()
            else:
                staying = True
        return staying

    def let_go(self, run: AttemptRun, moved: Moved) -> Iterator[AttemptRun]:
        """D runs these choices no longer."""
        for choice in [c for c in run.choices if c.index in moved.choices]:
            if moved.handoff is not None:
                run.offered[choice.index] = moved.handoff
            else:
                run.hand_over(choice)
                self._requeue(choice, MoveOutcome.GIVEN_BACK)
        yield from self.follow(run)

    def follow(self, run: AttemptRun) -> Iterator[AttemptRun]:
        """Goes on with offered choices once their tokens are here: P's may come after D's."""
        for choice in [c for c in run.choices if c.index in run.offered]:
            handoff = run.offered[choice.index]
            if choice.ended or self._placement.missing_tokens(choice, handoff) <= 0:
                run.hand_over(choice)
                yield from self._follow(_source(run), choice, handoff)

    def another_decode_worker(self, run: AttemptRun) -> WorkerSession | None:
        """Who may pull what the attempt's D has not begun to, where there is KV to be pulled."""
        source = run.pair.prefill
        if source is None or not run.can_redirect:
            return None
        return self._placement.decode_worker(run.unfinished, source.member.compat_key)

    def progressed(self, run: AttemptRun) -> None:
        """The attempt's D has sent its first token."""
        if run.follows_kv:
            self.outcomes[MoveOutcome.PULLED] += 1

    def failed(self, run: AttemptRun) -> None:
        """The attempt is over and will be computed anew."""
        if run.follows_kv and run.can_redirect:
            self.outcomes[MoveOutcome.FAILED] += 1

    def _follow(
        self, source: WorkerSession, choice: Choice, handoff: Handoff
    ) -> Iterator[AttemptRun]:
        session = None
        if not choice.ended and self._placement.missing_tokens(choice, handoff) == 0:
            session = self._placement.decode_worker([choice], handoff.compat_key)
        if session is None:
            source.cancel(handoff.transfer_id)
            self._requeue(choice, MoveOutcome.FAILED)
            return
        attempt = self._placement.continuation(choice, handoff)
        pair = WorkerPair(prefill=source, decode=session)
        yield AttemptRun(attempt, pair, [choice], follows=handoff)

    def _requeue(self, choice: Choice, outcome: MoveOutcome) -> None:
        if not choice.ended:
            choice.requeue()
            self.outcomes[outcome] += 1


def _source(run: AttemptRun) -> WorkerSession:
    assert run.pair.decode is not None, "nobody else lets go of choices"
    return run.pair.decode
