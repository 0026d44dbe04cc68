"""Who is next (pure): classes strictly in order, tenants of a class by what they were served.

The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024):
each tenant has a counter of the tokens it was served, outputs weighing more than prompts, and the
next request is one of the tenant with the least. A tenant that comes back from having nothing to
ask is lifted to the least of those who wait, so that idleness saves nothing up. Two tenants who
both always have requests waiting then differ by a bounded amount, whatever either of them sends.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from state.tenants import PriorityClass

PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
"""An output token takes a step of its own; the paper's ratio."""

ORDER = (PriorityClass.INTERACTIVE, PriorityClass.STANDARD, PriorityClass.BATCH)


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in the line. Among a tenant's own, lower priorities go first."""

    priority_class: PriorityClass
    tenant: str
    num_tokens: int
    """Prompt tokens that are probably to be computed."""
    priority: int = 0


@dataclass(slots=True)
class _ClassQueue:
    """The tenants of one class."""

    waiting: dict[str, list[tuple[int, int, Ticket]]] = field(default_factory=dict)
    """Of each tenant that has any: in order of priority, then arrival."""
    counters: dict[str, float] = field(default_factory=dict)
    last: str = ""
    """The tenant that was last sent one: a newcomer to an empty line begins where it is."""


class FairQueue:
    """Waiting tickets, and what each tenant was served."""

    def __init__(self) -> None:
        self._classes = {each: _ClassQueue() for each in ORDER}
        self._arrivals = count()

    def __len__(self) -> int:
        return sum(1 for _ in self.tickets())

    def tickets(self) -> Iterator[Ticket]:
        for queue in self._classes.values():
            for tickets in queue.waiting.values():
                for _, _, ticket in tickets:
                    yield ticket

    def push(self, ticket: Ticket) -> None:
        queue = self._classes[ticket.priority_class]
        if ticket.tenant not in queue.waiting:
            self._lift(queue, ticket.tenant)
            queue.waiting[ticket.tenant] = []
        entry = (ticket.priority, next(self._arrivals), ticket)
        bisect.insort(queue.waiting[ticket.tenant], entry)

    def head(self) -> Ticket | None:
        """The next one, left where it is."""
        for queue in self._classes.values():
            if queue.waiting:
                tenant = min(queue.waiting, key=lambda t: (queue.counters[t], queue.waiting[t][0]))
                return queue.waiting[tenant][0][2]
        return None

    def remove(self, ticket: Ticket) -> None:
        """It leaves the line, for whatever reason. One that isn't in it changes nothing."""
        queue = self._classes[ticket.priority_class]
        left = [e for e in queue.waiting.get(ticket.tenant, ()) if e[2] is not ticket]
        if left:
            queue.waiting[ticket.tenant] = left
        else:
            queue.waiting.pop(ticket.tenant, None)

    def served(self, ticket: Ticket, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Its tenant was given this."""
        queue = self._classes[ticket.priority_class]
        if prompt_tokens:
            queue.last = ticket.tenant
        work = PROMPT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens
        queue.counters[ticket.tenant] = queue.counters.get(ticket.tenant, 0.0) + work

    def tokens_ahead(self, ticket: Ticket) -> int:
        """Prompt tokens that will probably be sent before this one, if it joins now.

        All of better classes, all of its own tenant's, and of each other tenant's in its class as
        many as its own: they take turns.
        """
        ahead, own = 0, ticket.num_tokens
        for each, queue in self._classes.items():
            sums = {t: sum(e[2].num_tokens for e in w) for t, w in queue.waiting.items()}
            if each is not ticket.priority_class:
                ahead += sum(sums.values())
                continue
            mine = sums.pop(ticket.tenant, 0)
            return ahead + mine + sum(min(theirs, mine + own) for theirs in sums.values())
        return ahead

    def _lift(self, queue: _ClassQueue, tenant: str) -> None:
        start = queue.counters.get(queue.last, 0.0)
        least = min((queue.counters[t] for t in queue.waiting), default=start)
        queue.counters[tenant] = max(queue.counters.get(tenant, least), least)
        if len(queue.counters) > 2 * len(queue.waiting) + 64:
            # Whoever has no more than the newcomer's start would be lifted to it anyway.
            queue.counters = {
                t: c
                for t, c in queue.counters.items()
                if c > least or t in queue.waiting or t in (tenant, queue.last)
            }
