"""What the house needs to know of a request that it serves, in whichever way it is served."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from core.errors import TandemError
from core.request import Pinned, TokenLogprobs
from router.life.admitted_request import AdmittedRequest
from router.life.choice import Choice, Delta
from router.life.timeline import RequestTimeline


class ServedLife(Protocol):
    """`RequestLife`, or `BeamSearch`, which lives many of them."""

    request: AdmittedRequest
    timeline: RequestTimeline

    @property
    def choices(self) -> Sequence[Choice]: ...

    @property
    def num_tokens_to_compute(self) -> int: ...

    @property
    def num_output_tokens(self) -> int: ...

    @property
    def num_cached_tokens(self) -> int | None: ...

    @property
    def pinned(self) -> Pinned | None: ...

    @property
    def num_attempts(self) -> int: ...

    @property
    def num_retries(self) -> int: ...

    @property
    def prefill_worker(self) -> str: ...

    @property
    def decode_worker(self) -> str: ...

    @property
    def prompt_logprobs(self) -> Mapping[int, TokenLogprobs]: ...

    @property
    def move_outcomes(self) -> Mapping[str, int]: ...

    def deltas(self) -> AsyncGenerator[Delta, None]: ...

    def end(self, error: TandemError) -> None: ...

    def end_choice(self, index: int) -> None: ...


def num_pinned_tokens(life: ServedLife) -> int | None:
    """Tokens of the prompt that stay cached; None: the client asked for nothing."""
    if life.request.pins is None:
        return None
    return 0 if life.pinned is None else life.pinned.num_tokens
