"""The line between the door and the workers.

    join         the gate open and nobody before: through at once, without waiting
    wait         else until the fair queue's head may go: a first token came, a request ended, a
                 worker came or said something new
    first token  what it kept busy is free
    leave        always once, whatever became of it

What tenants were served, prompts when sent and outputs as they come, decides whose turn it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from core.clock import Clock
from core.errors import DeadlineError, TandemError
from router.fleet.fleet import Fleet
from router.fleet.policy import WorkerView
from router.line.fair_queue import ORDER, FairQueue, Ticket
from router.line.gate import GateSettings, InFlight, is_open, num_prompt_workers
from router.line.ttft_model import TtftModel
from state.tenants import PriorityClass

Views: TypeAlias = Sequence[WorkerView]


@dataclass(slots=True)
class _Sent:
    """A request that went through, until it leaves."""

    work: float
    waits: bool = True
    """For its first token."""


@dataclass(slots=True)
class _Ahead:
    """What one class has at workers without a first token."""

    num_requests: int = 0
    num_tokens: int = 0


class WaitingLine:
    """Lives on one event loop."""

    def __init__(self, fleet: Fleet, settings: GateSettings, clock: Clock) -> None:
        self._fleet = fleet
        self._settings = settings
        self._clock = clock
        self._queue = FairQueue()
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._sent: dict[Ticket, _Sent] = {}
        self._ahead = {each: _Ahead() for each in ORDER}
        self._blocked = False
        self.model = TtftModel()

    @property
    def num_waiting(self) -> dict[PriorityClass, int]:
        counts = dict.fromkeys(ORDER, 0)
        for ticket in self._waiters:
            counts[ticket.priority_class] += 1
        return counts

    def views(self) -> Views:
        """The workers as they are now; asked once for all that is decided about a request."""
        return self._fleet.views()

    def predicted_ttft_s(self, ticket: Ticket, views: Views) -> float | None:
        """From now to its first token, if it joins now; None: not known."""
        ahead = self._queue.tokens_ahead(ticket) if self._waiters else 0
        return self.model.predict(self._work(ahead, ticket, views))

    async def join(self, ticket: Ticket, deadline: float, views: Views) -> None:
        """Returns when it may be sent. Raises DeadlineError, and what `end_all` is given."""
        self._queue.push(ticket)
        if self._queue.head() is ticket and self._may_go(ticket, views):
            self._send(ticket, views)
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = waiter
        self._watch()
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock.now())):
                await waiter
        except TimeoutError:
            raise DeadlineError("the request's deadline passed while it waited") from None
        finally:
            self._waiters.pop(ticket, None)
            self._watch()

    def served(self, ticket: Ticket, num_tokens: int) -> None:
        """The client was given tokens."""
        self._queue.served(ticket, output_tokens=num_tokens)

    def first_token(self, ticket: Ticket) -> None:
        """Its prompt is computed."""
        self._free(ticket, self._sent[ticket])
        self._advance()

    def learn(self, ticket: Ticket, seconds: float) -> None:
        """It took that long from its worker being told to its first token, at the first try."""
        if ticket.priority_class is not PriorityClass.BATCH:  # which others overtake
            self.model.observe(self._sent[ticket].work, seconds)

    def leave(self, ticket: Ticket, num_untold: int) -> None:
        """It is over, wherever it was; so many of its tokens were computed and never told."""
        self._queue.remove(ticket)
        self._queue.served(ticket, output_tokens=num_untold)
        sent = self._sent.pop(ticket, None)
        if sent is not None:
            self._free(ticket, sent)
        self._advance()

    def end(self, ticket: Ticket, error: TandemError) -> None:
        """It fails with this, if it waits."""
        waiter = self._waiters.get(ticket)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def end_all(self, error: TandemError) -> None:
        """Whoever waits fails with this."""
        for ticket in self._waiters:
            self.end(ticket, error)

    def _advance(self) -> None:
        while (head := self._queue.head()) is not None:
            views = self.views()
            if not self._may_go(head, views):
                return
            waiter = self._waiters.get(head)
            if waiter is None or waiter.done():
                self._queue.remove(head)  # its task is about to notice that it is over
                continue
            self._send(head, views)
            waiter.set_result(None)

    def _may_go(self, ticket: Ticket, views: Views) -> bool:
        before = self._before(ticket.priority_class)
        in_flight = InFlight(before.num_requests, before.num_tokens, len(self._sent))
        return is_open(views, in_flight, ticket.priority_class, self._settings)

    def _send(self, ticket: Ticket, views: Views) -> None:
        self._queue.remove(ticket)
        self._queue.served(ticket, prompt_tokens=max(1, ticket.num_tokens))
        self._sent[ticket] = _Sent(self._work(0, ticket, views))
        ahead = self._ahead[ticket.priority_class]
        ahead.num_tokens += ticket.num_tokens
        ahead.num_requests += 1

    def _free(self, ticket: Ticket, sent: _Sent) -> None:
        if sent.waits:
            sent.waits = False
            ahead = self._ahead[ticket.priority_class]
            ahead.num_tokens -= ticket.num_tokens
            ahead.num_requests -= 1

    def _work(self, tokens_ahead: int, ticket: Ticket, views: Views) -> float:
        """What has to be computed until its first token, for each worker that does so."""
        workers = max(1, num_prompt_workers(views, self._settings))
        sent = self._before(ticket.priority_class).num_tokens
        overtaken = sum(ahead.num_tokens for ahead in self._ahead.values()) - sent
        # Others' routers send to the same workers: what those report may be more than ours.
        reported = sum(view.prefill_tokens for view in views) - overtaken
        before = tokens_ahead + max(sent, reported)
        return before / workers + ticket.num_tokens

    def _before(self, priority_class: PriorityClass) -> _Ahead:
        """What workers do before a request of this class: all of better ones, and its own."""
        classes = ORDER[: ORDER.index(priority_class) + 1]
        return _Ahead(
            sum(self._ahead[each].num_requests for each in classes),
            sum(self._ahead[each].num_tokens for each in classes),
        )

    def _watch(self) -> None:
        """The fleet's news matter only while somebody waits."""
        if bool(self._waiters) == self._blocked:
            return
        self._blocked = bool(self._waiters)
        if self._blocked:
            self._fleet.watch(self._advance)
        else:
            self._fleet.unwatch(self._advance)
