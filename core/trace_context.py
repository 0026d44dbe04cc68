"""Where a span belongs: W3C Trace Context, as it arrives from clients and travels to workers.

    traceparent   00-<trace id, 32 hex>-<span id of the caller, 16 hex>-<flags, 01: sampled>
    tracestate    other vendors' notes, passed on as they are

Spans of one attempt are made by three processes. Their ids follow from its transfer id, so that
each can name the others' spans as parents or links without a word between them.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, replace

MAX_STATE_LENGTH = 512
"""What the specification asks to be passed on at least; longer ones are dropped."""

_PARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
    r"(?P<more>-.*)?"
)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span, seen from those below it. Ids are lower-case hex."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""

    def below(self, span_id: str) -> TraceContext:
        """The same trace, seen from below another of its spans."""
        return replace(self, span_id=span_id)

    def encode(self) -> str:
        """One string: a traceparent, then the tracestate if there is one."""
        parent = f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"
        return f"{parent} {self.state}" if self.state else parent


def decode_context(text: str) -> TraceContext | None:
    """What `TraceContext.encode` made; None for anything else."""
    parent, _, state = text.partition(" ")
    return parse_headers(parent, state)


def parse_headers(parent: str | None, state: str | None) -> TraceContext | None:
    """The context in a client's headers; None where there is none, or one that is not valid.

    W3C Trace Context, level 2, 3.2.2: later versions may append fields, version ff is invalid.
    """
    found = _PARENT.fullmatch((parent or "").strip())
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["more"]):
        return None
    if not int(found["trace"], 16) or not int(found["span"], 16):
        return None
    return TraceContext(
        found["trace"], found["span"], bool(int(found["flags"], 16) & 1), _kept_state(state)
    )


def _kept_state(state: str | None) -> str:
    state = (state or "").strip()
    printable = all(" " <= character <= "~" for character in state)
    return state if printable and len(state) <= MAX_STATE_LENGTH else ""


def new_trace_id() -> str:
    return secrets.token_hex(16)


def new_span_id() -> str:
    return secrets.token_hex(8)


def span_id_of(part: str, transfer_id: str) -> str:
    """The span of one part of an attempt: everybody who knows its transfer id finds the same."""
    return hashlib.sha256(f"{part}:{transfer_id}".encode()).hexdigest()[:16]


def attempt_span_id(transfer_id: str) -> str:
    """The router's span of an attempt, below which are those of its workers."""
    return span_id_of("attempt", transfer_id)


def is_sampled(trace_id: str, ratio: float) -> bool:
    """Whether a trace of ours is kept: decided by its id, so that everybody decides alike."""
    return int(trace_id[-14:], 16) < ratio * 2**56
