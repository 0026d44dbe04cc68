"""The call that a request came in by: whose key, how urgent, until when.

HTTP and gRPC set it before the endpoint runs, and whatever the endpoint starts inherits it. A
request without one belongs to nobody, which `tenants.require_keys` refuses.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from state.tenants import KeyRecord, PriorityClass

_CURRENT: ContextVar[Call] = ContextVar("call")


@dataclass(slots=True, eq=False)
class Call:
    """One call; several prompts in it are one request of its key's rate."""

    key: KeyRecord | None = None
    priority_class: PriorityClass = PriorityClass.STANDARD
    timeout_s: float | None = None
    """The client's deadline for all of it."""
    answer_headers: dict[str, str] = field(default_factory=dict)
    """How the key's limits stand, for the answer."""
    request_charged: bool = False
    lease_id: str | None = None
    """Of its key's concurrency, from its first prompt to its last."""
    num_holders: int = 0
    """Prompts of it that are in the house."""

    @property
    def tenant(self) -> str:
        return "" if self.key is None else self.key.key_id

    def cache_salt(self, asked: str) -> str:
        """The client's own salt; inside its key's, where the key shares with nobody."""
        if self.key is None or not self.key.isolate_cache:
            return asked
        return hashlib.sha256(f"{self.key.cache_salt}\0{asked}".encode()).hexdigest()


def call_of(record: KeyRecord, *, timeout_s: float | None = None, batch: bool = False) -> Call:
    """A call with this key; `batch`: it waits behind everything online, whatever its class."""
    priority_class = PriorityClass.BATCH if batch else record.priority_class
    return Call(record, priority_class, timeout_s)


def current_call() -> Call:
    """The call of this task, or one of nobody."""
    return _CURRENT.get(None) or Call()


def enter_call(call: Call) -> None:
    """From here on this task, and what it starts, belongs to the call."""
    _CURRENT.set(call)


@contextlib.contextmanager
def calling(call: Call) -> Iterator[None]:
    """What is begun in the block belongs to the call: for work that no client waits for."""
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)
