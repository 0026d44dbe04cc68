"""The life of one request: attempts follow each other until every choice has ended.

    queue     choices without an attempt: find a pair (wait for one, bounded), begin an attempt
    prefill   Prefill to P; P's `started(handoff)` goes to D as Decode
    tokens    the next position of each choice is taken, all others are ignored or kept for later
    finish    the worker's finish reason, or a stop string found here (that choice's legs: cancel)
    fail      P lost before its first tokens, a pull failed, D lost: both legs are cancelled, the
              unfinished choices queue again and go on from prompt + emitted, up to max_attempts
    move      D drains: if another D could take over, D is asked to let go. A choice that it offers
              the KV of goes on there, nothing computed anew; others queue again
    close     always, whatever ended the loop (finished, error, client gone): cancel what still runs

One task, one loop, one mailbox. A choice that has emitted is resumed by an attempt of its own;
those that have not yet share one. What a client has seen is never computed again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from core.clock import Clock
from core.errors import DeadlineError, TandemError, TransferError
from core.handoff import Moved, Started
from core.request import (
    AttemptDone,
    AttemptFailed,
    Phase,
    Pinned,
    PromptLogprobs,
    TokenEvent,
    TokenLogprobs,
)
from router.fleet.fleet import Fleet
from router.fleet.leg_event import FromLeg, WorkerDraining, WorkerLost
from router.fleet.policy import NoPair
from router.life.admitted_request import AdmittedRequest
from router.life.attempt_run import AttemptRun
from router.life.choice import Choice, ChoiceState, Delta, joined
from router.life.failures import (
    broken_promise_error,
    error_of,
    is_draining,
    log_failure,
    no_pair_error,
)
from router.life.inbox import Inbox
from router.life.moves import Moves
from router.life.placement import Placement
from router.life.timeline import NOTED_TOKENS, RequestTimeline


@dataclass(frozen=True, slots=True)
class LifeSettings:
    """Limits of a request's life; times in seconds."""

    max_attempts: int
    no_worker_timeout_s: float
    block_size: int


class RequestLife:
    """Serves one request. Iterate `deltas` once, and close it (`contextlib.aclosing`)."""

    def __init__(
        self,
        request: AdmittedRequest,
        choices: Sequence[Choice],
        fleet: Fleet,
        timeline: RequestTimeline,
        settings: LifeSettings,
        clock: Clock,
    ) -> None:
        self.request = request
        self.choices = tuple(choices)
        self.timeline = timeline
        self.num_attempts = 0
        self.num_cached_tokens: int | None = None
        """Hits of the first attempt that started; later ones would find what that one left."""
        self.prompt_logprobs: dict[int, TokenLogprobs] = {}
        """By index in the prompt; complete with the first token, if they were asked for."""
        self.pinned: Pinned | None = None
        """By the last worker that computed the prompt; its seconds are those of all together."""
        self.prefill_worker = ""
        self.decode_worker = ""
        self._placement = Placement(request, fleet, clock, block_size=settings.block_size)
        self.moves = Moves(self._placement)
        self._settings = settings
        self._clock = clock
        self._inbox: Inbox[FromLeg] = Inbox()
        self._runs: dict[str, AttemptRun] = {}
        self._waiting: NoPair | None = None
        self._waiting_since = 0.0
        self._settled = False
        """All that could be begun or moved was; nothing but tokens has come since."""
        self._error: TandemError | None = None

    @property
    def num_tokens_to_compute(self) -> int:
        """Prompt tokens that no worker is thought to have cached; at least one."""
        return self._placement.num_tokens_to_compute

    @property
    def num_output_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices)

    @property
    def move_outcomes(self) -> Mapping[str, int]:
        """How many choices were let go of, by what came of them."""
        return {outcome.value: count for outcome, count in self.moves.outcomes.items()}

    @property
    def num_retries(self) -> int:
        """Attempts after the first one of each choice."""
        return sum(max(0, choice.num_attempts - 1) for choice in self.choices)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """What each choice gains, as it comes; ends after the last choice's finish reason.

        Raises a TandemError if the request can't be finished: nothing comes after it.
        """
        try:
            over = self._is_over()
            while not over:
                if not self._settled:
                    self._settle()
                for delta in self._apply(await self._inbox.take(self._patience_s())):
                    yield delta
                over = self._check()
            self.timeline.finished = self._clock.now()
        finally:
            self._close()

    def end(self, error: TandemError) -> None:
        """The house ends the request: `deltas` raises this soon."""
        self._error = error
        self._inbox.wake()

    def end_choice(self, index: int) -> None:
        """The house lets this choice go no further: its work is cancelled, others go on."""
        choice = self.choices[index]
        if choice.ended:
            return
        choice.cancel()
        for run in [run for run in self._runs.values() if choice in run.choices]:
            if run.unfinished:
                run.cancel_choice(choice)
            else:
                self._end(run)

    def _is_over(self) -> bool:
        # With every token: a list costs half of what a generator does.
        return all([choice.ended for choice in self.choices])

    def _settle(self) -> None:
        """Begins and moves what can be now. While something has to wait, every wake tries again."""
        self._begin_queued()
        stays = self.moves.ask(self._runs.values())
        self._settled = not stays and self._waiting is None
        if self._settled:
            self._placement.unwatch(self._inbox.wake)
        else:
            self._placement.watch(self._inbox.wake)

    # ---- queue: an attempt for every choice that has none

    def _begin_queued(self) -> None:
        queued = [c for c in self.choices if c.state is ChoiceState.QUEUED]
        fresh = [c for c in queued if not c.token_ids]
        groups = [fresh] if fresh else []
        groups += [[c] for c in queued if c.token_ids]
        missing = [no_pair for group in groups if (no_pair := self._begin(group))]
        self._note_missing(missing[0] if missing else None)

    def _begin(self, choices: list[Choice]) -> NoPair | None:
        """Begins one attempt for these choices, or says why no pair can take it now."""
        pair = self._placement.pair(choices)
        if isinstance(pair, NoPair):
            return pair
        run = self._add(AttemptRun(self._placement.attempt(choices, pair), pair, choices))
        self.timeline.prefill_sent(self._clock.now())
        run.begin(self._inbox.put, block_size=self._settings.block_size)
        return None

    def _add(self, run: AttemptRun) -> AttemptRun:
        self._runs[run.attempt.transfer_id] = run
        self.num_attempts += 1
        number = len(self.timeline.attempts) + 1
        self.timeline.attempt_began(run.timeline(number, self._clock.now()))
        self._note_workers(run)
        return run

    def _note_workers(self, run: AttemptRun) -> None:
        """Keeps who computed the first token, and who was last to decode."""
        first = run.pair.prefill or run.pair.decode
        if first is not None and self.timeline.first_token is None:
            self.prefill_worker = first.member.worker_id
        if run.pair.decode is not None:
            self.decode_worker = run.pair.decode.member.worker_id

    # ---- waiting, bounded

    def _note_missing(self, no_pair: NoPair | None) -> None:
        if no_pair is not None and self._waiting is None:
            self._waiting_since = self._clock.now()
        self._waiting = no_pair

    def _patience_s(self) -> float:
        """How long the loop may sleep before a deadline needs a look."""
        until = self.request.deadline
        if self._waiting is not None:
            until = min(until, self._waiting_since + self._settings.no_worker_timeout_s)
        return max(0.0, until - self._clock.now())

    def _check(self) -> bool:
        """Whether it is over. Raises what else ended it: a failure, its deadline, or nobody to
        serve it."""
        if self._error is not None:
            raise self._error
        if self._is_over():
            return True
        now = self._clock.now()
        if now >= self.request.deadline:
            raise DeadlineError("the request's deadline passed")
        if self._waiting is not None:
            waited_s = now - self._waiting_since
            if waited_s >= self._settings.no_worker_timeout_s:
                raise no_pair_error(self._waiting)
        return False

    # ---- events

    def _apply(self, messages: Sequence[FromLeg]) -> Sequence[Delta]:
        """Handles a batch; what a choice gains by it comes out as one delta."""
        if len(messages) == 1:
            delta = self._handle(messages[0])
            return () if delta is None else (delta,)
        gained: dict[int, list[Delta]] = {}
        for message in messages:
            delta = self._handle(message)
            if delta is not None:
                gained.setdefault(delta.choice, []).append(delta)
        return [delta for deltas in gained.values() if (delta := joined(deltas))]

    def _handle(self, message: FromLeg) -> Delta | None:
        event = message.event
        run = self._runs.get(event.transfer_id)
        if run is None and isinstance(event, AttemptDone):
            self.timeline.leg_done(message.phase, event)
        if run is None or self._error is not None:
            return None
        if isinstance(event, TokenEvent):
            return self._token(run, message.phase, event)
        self._settled = False
        self._hear(run, message)
        return None

    def _hear(self, run: AttemptRun, message: FromLeg) -> None:
        """Whatever is no token."""
        match message.event:
            case Started() as started:
                self._started(run, started)
            case PromptLogprobs() as scored:
                for index, logprobs in enumerate(scored.logprobs, scored.start):
                    self.prompt_logprobs.setdefault(index, logprobs)
            case Pinned() as pinned:
                before_s = self.pinned.token_seconds if self.pinned else 0.0
                self.pinned = replace(pinned, token_seconds=before_s + pinned.token_seconds)
            case Moved() as moved:
                self._moved(run, moved)
            case WorkerDraining():
                run.drains(message.phase)
            case AttemptDone() as done:
                self.timeline.leg_done(message.phase, done)
                run.leg_over(message.phase)
                self._check_promises(run)
            case (AttemptFailed() | WorkerLost()) as failed:
                self._leg_failed(run, message.phase, error_of(failed))

    def _started(self, run: AttemptRun, started: Started) -> None:
        now = self._clock.now()
        self.timeline.prefill_started(now)
        attempt = self.timeline.attempts[started.transfer_id]
        attempt.started, attempt.num_cached_tokens = now, started.num_cached_tokens
        if self.num_cached_tokens is None:
            cached = min(started.num_cached_tokens, len(self.request.token_ids))
            self.num_cached_tokens = cached
        run.started(started, self._inbox.put)

    def _token(self, run: AttemptRun, phase: Phase, event: TokenEvent) -> Delta | None:
        choice = run.choice(event.choice)
        if choice is None:
            return None
        if run.progressed(phase):
            self.timeline.attempts[event.transfer_id].decoding = self._clock.now()
            self.moves.progressed(run)
        delta = choice.accept(event)
        if delta is None:
            return None
        self._note_tokens(choice, delta)
        if run.offered:
            self._settled = False
            self._begin_following(self.moves.follow(run))
        elif not choice.ended:
            return delta
        if not run.unfinished:
            self._end(run)
        elif choice.ended and not choice.finished_by_worker:
            run.cancel_choice(choice)
        return delta

    def _note_tokens(self, choice: Choice, delta: Delta) -> None:
        total = len(choice.token_ids)
        begin = total - len(delta.token_ids)
        if begin < NOTED_TOKENS:
            for position in range(begin, min(total, NOTED_TOKENS)):
                self.timeline.token(position, self._clock.now())

    # ---- move

    def _begin_following(self, runs: Iterable[AttemptRun]) -> None:
        for run in runs:
            self._add(run).follow(self._inbox.put, block_size=self._settings.block_size)

    def _moved(self, run: AttemptRun, moved: Moved) -> None:
        self._begin_following(self.moves.let_go(run, moved))
        if not run.unfinished:
            self._end(run)

    def _redirect(self, run: AttemptRun) -> bool:
        """D drained before it took over: another one may pull the same KV, if there is any."""
        session = self.moves.another_decode_worker(run)
        if session is None:
            return False
        run.redirect(session, self._inbox.put, block_size=self._settings.block_size)
        self.timeline.attempts[run.attempt.transfer_id].decode_worker = session.member.worker_id
        self._note_workers(run)
        return True

    # ---- failure

    def _check_promises(self, run: AttemptRun) -> None:
        phase = run.broken_promise()
        if phase is None:
            return
        self._fail(run, phase, broken_promise_error(_worker_id(run, phase)))

    def _leg_failed(self, run: AttemptRun, phase: Phase, error: TandemError) -> None:
        """A lost P matters only until its first tokens are here: then D will say if it does."""
        run.leg_over(phase)
        if not run.needs(phase):
            return
        if phase is Phase.DECODE and is_draining(error) and self._redirect(run):
            return
        self._fail(run, phase, error)

    def _fail(self, run: AttemptRun, phase: Phase, error: TandemError) -> None:
        """Ends the attempt; its unfinished choices queue again, or the request is over."""
        self.timeline.attempts[run.attempt.transfer_id].failed(phase, error)
        log_failure(self.request, phase, error, worker=_worker_id(run, phase))
        self._end(run)
        blamed = [phase]
        if isinstance(error, TransferError):
            # Either side may be the broken one; others, if there are any, are the better bet.
            blamed = list(Phase)
        for session in (run.pair.session(p) for p in blamed):
            if session is not None:
                self._placement.exclude(session)
        self.moves.failed(run)
        for choice in run.unfinished:
            if is_draining(error):
                choice.requeue()
            else:
                choice.fail()
        exhausted = any(c.num_failures >= self._settings.max_attempts for c in run.unfinished)
        if exhausted or not error.retryable:
            self._error = error

    def _end(self, run: AttemptRun) -> None:
        self.timeline.attempt_ended(run.attempt.transfer_id, self._clock.now())
        run.close()
        self._runs.pop(run.attempt.transfer_id, None)

    def _close(self) -> None:
        """No awaits in here: it also runs when the client's task is being cancelled."""
        self._placement.unwatch(self._inbox.wake)
        for message in self._inbox.close():
            if isinstance(message.event, AttemptDone):
                self.timeline.leg_done(message.phase, message.event)
        for run in list(self._runs.values()):
            self._end(run)
        for choice in self.choices:
            choice.cancel()


def _worker_id(run: AttemptRun, phase: Phase) -> str:
    session = run.pair.session(phase)
    return "unknown" if session is None else session.member.worker_id
