"""One request's stay in the house, and what it owes when it leaves.

    enter    the key may ask this model, and its class has a place in the house
    charge   the prompt is known: request, prompt tokens and a lease are taken of the key's limits
    turn     room among waiting tokens, in time for the deadline, then the line
    gained   tokens leave for the client
    leave    always once: everything taken is given back, what was used is charged

The first token is heard of from the request's timeline: the client may be told of it much later.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from core.clock import Clock
from core.errors import (
    AuthenticationError,
    OverloadedError,
    PermissionDeniedError,
    TandemError,
)
from router.admission import Admission
from router.life.admitted_request import AdmittedRequest
from router.life.timeline import RequestTimeline
from router.limits import check_model
from router.line.early import retry_after_s, too_late
from router.line.fair_queue import Ticket
from router.line.waiting_line import WaitingLine
from router.tenants.answer_headers import denied, limit_headers
from router.tenants.call import Call
from router.tenants.limits import Limits
from router.tenants.prices import Price
from router.tenants.tenant_metrics import TenantMetrics
from router.tenants.usage import (
    Weights,
    day_of,
    seconds_to_midnight,
    usage_row,
    weighted_tokens,
)
from state.tenants import KeyRecord, LimitDemand, LimitVerdict, PriorityClass, Settlement

LEASE_MARGIN_S = 30.0
FINISHED = "finished"

BASE_PRIORITY = {
    PriorityClass.INTERACTIVE: -1000,
    PriorityClass.STANDARD: 0,
    PriorityClass.BATCH: 1000,
}
"""What a client's own priority is added to: far enough apart that none reaches another class."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """Where keys are charged. `wall` gives Unix time in seconds."""

    limits: Limits
    weights: Weights
    prices: Mapping[str, Price]
    metrics: TenantMetrics
    wall: Callable[[], float]
    pinned_tokens: int | None = None
    """What a key may have pinned that says nothing of it; None: no limit."""


@dataclass(frozen=True, slots=True)
class Hall:
    """What all visits share; without `accounts` nobody needs a key."""

    admission: Admission
    line: WaitingLine
    accounts: Accounts | None
    model: str
    clock: Clock


@dataclass(frozen=True, slots=True)
class Served:
    """What a request got."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    pinned_token_seconds: float = 0.0


class WaitingLife(Protocol):
    """What a visit needs to know of the life that follows its turn."""

    request: AdmittedRequest
    timeline: RequestTimeline

    @property
    def num_attempts(self) -> int: ...

    @property
    def num_tokens_to_compute(self) -> int: ...


class Visit:
    """Made by `enter`; ended by `leave`."""

    def __init__(self, hall: Hall, call: Call) -> None:
        self.call = call
        self._hall = hall
        self._day = ""
        self._holds_lease = False
        self._num_requests = 0
        self._charged = 0
        self._alone = False
        self._waiting_tokens = 0
        self._ticket: Ticket | None = None
        self._num_gained = 0

    @property
    def priority_class(self) -> PriorityClass:
        return self.call.priority_class

    def enter(self, model: str) -> None:
        """Raises AuthenticationError, PermissionDeniedError, ModelNotFoundError, and what
        `Admission.enter` raises; then nothing was taken."""
        key = self.call.key
        if key is None and self._hall.accounts is not None:
            raise AuthenticationError("requests need an API key here")
        check_model(model, self._hall.model)
        if key is not None and key.models and model not in key.models:
            raise PermissionDeniedError(f"this key may not use the model '{model}'")
        if key is not None and self._hall.accounts is not None:
            self._check_known(self._hall.accounts, key)
        self._hall.admission.enter(self.priority_class)

    def worker_priority(self, asked: int) -> int:
        """The client's own priority within its class; lower is served first."""
        return BASE_PRIORITY[self.priority_class] + asked

    @property
    def max_pinned_tokens(self) -> int | None:
        """Tokens that the key may have pinned at once; None: no limit."""
        accounts, key = self._hall.accounts, self.call.key
        if accounts is None or key is None:
            return None
        own = key.limits.pinned_tokens
        return accounts.pinned_tokens if own is None else own

    async def charge(self, num_prompt_tokens: int, *, lease_s: float) -> None:
        """Raises RateLimitedError or QuotaError if the key's limits have no room for it."""
        accounts, key, call = self._hall.accounts, self.call.key, self.call
        if accounts is None or key is None:
            return
        self._day = day_of(accounts.wall())
        num_requests = 0 if call.request_charged else 1
        call.request_charged = True
        if not key.limits.any:
            self._num_requests = num_requests
            return
        num_tokens = self._weighted(accounts, num_prompt_tokens)
        lease_id = self._hold_lease()
        demand = LimitDemand(
            key_id=key.key_id,
            limits=key.limits,
            day=self._day,
            num_requests=num_requests,
            num_tokens=num_tokens,
            lease_id=lease_id,
            lease_s=lease_s + LEASE_MARGIN_S,
        )
        verdict = await accounts.limits.acquire(demand)
        call.answer_headers.update(limit_headers(verdict))
        if verdict.denial:
            self._let_lease_go()
            self._day = ""
            raise _refusal(accounts, key, verdict, num_tokens)
        self._num_requests, self._charged, self._alone = num_requests, num_tokens, verdict.alone

    async def turn(self, life: WaitingLife) -> None:
        """Returns when the request may be sent to workers.

        Raises OverloadedError for a full house, or for a first token that would come after the
        deadline; DeadlineError.
        """
        hall, request = self._hall, life.request
        ticket = Ticket(
            self.priority_class,
            self.call.tenant,
            life.num_tokens_to_compute,
            request.priority,
        )
        views = hall.line.views()
        predicted_s = hall.line.predicted_ttft_s(ticket, views)
        self._check_in_time(ticket, predicted_s, request.deadline)
        num_tokens = len(request.token_ids)
        wait_s = retry_after_s(predicted_s)
        hall.admission.wait(num_tokens, self.priority_class, retry_after_s=wait_s)
        self._waiting_tokens = num_tokens
        self._ticket = ticket
        life.timeline.on_first_token = lambda: self._first_token(life)
        await hall.line.join(ticket, request.deadline, views)

    def end(self, error: TandemError) -> None:
        """`turn` raises this, if it waits."""
        if self._ticket is not None:
            self._hall.line.end(self._ticket, error)

    def gained(self, num_tokens: int) -> None:
        """These tokens leave for the client."""
        assert self._ticket is not None, "not sent yet"
        self._num_gained += num_tokens
        self._hall.line.served(self._ticket, num_tokens)

    def leave(self, outcome: str, served: Served) -> None:
        self._hall.admission.served(self._waiting_tokens)
        self._waiting_tokens = 0
        self._hall.admission.leave()
        if self._ticket is not None:
            untold = served.output_tokens - self._num_gained
            self._hall.line.leave(self._ticket, max(0, untold))
        self._settle(outcome, served)

    def _first_token(self, life: WaitingLife) -> None:
        assert self._ticket is not None, "not sent yet"
        line, sent = self._hall.line, life.timeline.sent
        self._hall.admission.served(self._waiting_tokens)
        self._waiting_tokens = 0
        if life.num_attempts == 1 and sent is not None:
            # Waiting for a worker to exist, or a second try, says nothing about how fast they are.
            line.learn(self._ticket, self._hall.clock.now() - sent)
        line.first_token(self._ticket)

    def _check_in_time(self, ticket: Ticket, predicted_s: float | None, deadline: float) -> None:
        error = too_late(
            predicted_s=predicted_s,
            alone_s=self._hall.line.model.predict(ticket.num_tokens),
            left_s=deadline - self._hall.clock.now(),
        )
        if error is not None:
            raise error

    def _check_known(self, accounts: Accounts, key: KeyRecord) -> None:
        """A key that was just refused is refused again without tokenising, or asking the store."""
        verdict = accounts.limits.known_denial(key.key_id)
        if verdict is not None and not self.call.request_charged:
            self.call.answer_headers.update(limit_headers(verdict))
            raise _refusal(accounts, key, verdict, 1)

    def _hold_lease(self) -> str | None:
        """The id of a lease that is to be taken; None: another prompt of the call has taken it."""
        call = self.call
        self._holds_lease = True
        call.num_holders += 1
        if call.lease_id is not None:
            return None
        call.lease_id = uuid.uuid4().hex
        return call.lease_id

    def _let_lease_go(self) -> str | None:
        """The lease that ends with this prompt, if it was the call's last."""
        call = self.call
        if not self._holds_lease:
            return None
        self._holds_lease = False
        call.num_holders -= 1
        if call.num_holders:
            return None
        lease_id, call.lease_id = call.lease_id, None
        return lease_id

    def _weighted(self, accounts: Accounts, num_prompt_tokens: int) -> int:
        """What a prompt is charged before anybody knows what of it is cached."""
        return weighted_tokens(
            accounts.weights,
            prompt_tokens=num_prompt_tokens,
            cached_tokens=0,
            output_tokens=0,
            batch=self.priority_class is PriorityClass.BATCH,
        )

    def _settle(self, outcome: str, served: Served) -> None:
        """Charges what was served: nothing for who was served nothing, not even a request."""
        accounts, key = self._hall.accounts, self.call.key
        if accounts is None or key is None:
            return
        accounts.metrics.ended(key.name, outcome, served.prompt_tokens, served.output_tokens)
        if not self._day:
            return
        was_served = outcome == FINISHED or served.output_tokens > 0
        row = usage_row(
            accounts.weights,
            accounts.prices.get(self._hall.model, Price()),
            day=self._day,
            key_id=key.key_id,
            model=self._hall.model,
            batch=self.priority_class is PriorityClass.BATCH,
            num_requests=self._num_requests if was_served else 0,
            prompt_tokens=served.prompt_tokens if was_served else 0,
            cached_tokens=served.cached_tokens if was_served else 0,
            output_tokens=served.output_tokens,
            pinned_token_seconds=served.pinned_token_seconds,
        )
        lease_id = self._let_lease_go()
        difference = row.weighted_tokens - self._charged
        settlement = Settlement(
            key_id=key.key_id,
            day=self._day,
            limits=key.limits,
            lease_ids=() if lease_id is None else (lease_id,),
            num_requests=0 if was_served else -self._num_requests,
            num_tokens=difference,
            quota_tokens=difference,
            usage=(row,) if was_served else (),
        )
        accounts.limits.settle(settlement, charged_alone=self._charged if self._alone else None)


def _refusal(
    accounts: Accounts, key: KeyRecord, verdict: LimitVerdict, num_tokens: int
) -> OverloadedError:
    accounts.metrics.limited(verdict.denial)
    to_midnight_s = seconds_to_midnight(accounts.wall())
    return denied(verdict, key.limits, num_tokens=num_tokens, to_midnight_s=to_midnight_s)
