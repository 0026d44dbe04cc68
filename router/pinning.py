"""From breakpoints in a conversation to prefixes of its tokens, and to what workers are asked.

Where a breakpoint lies in a prompt is found by rendering the conversation once more with a mark at
that place: up to there both texts are the same, whatever the template does with messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from core.request import PinnedPrefix, PinWish
from router.cache_control import Breakpoint
from router.fleet.policy import WorkerView
from router.request_spec import ChatPrompt, RequestSpec

_MARK = "\ue001"
"""For private use: no text of anybody's, and no space that a template would trim."""


def with_mark(prompt: ChatPrompt, place: Breakpoint) -> ChatPrompt:
    """The conversation with a mark where the breakpoint is."""
    before, after = prompt.messages[: place.message], prompt.messages[place.message + 1 :]
    message = prompt.messages[place.message]
    text = str(message.get("content", ""))
    end = len(text) if place.end is None else place.end
    marked = {**message, "content": text[:end] + _MARK + text[end:]}
    return replace(prompt, messages=(*before, marked, *after))


def num_common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many first elements are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def last_of_each_ttl(breakpoints: Iterable[Breakpoint]) -> list[Breakpoint]:
    """The others lie within what these keep as long."""
    return list({place.ttl_s: place for place in breakpoints}.values())


def pin_wish(
    spec: RequestSpec,
    prefixes: Iterable[PinnedPrefix],
    *,
    num_cut: int,
    owner: str,
    max_owned_tokens: int | None,
) -> PinWish | None:
    """What workers are asked; None: the client asked for nothing. `num_cut` tokens at the prompt's
    beginning were cut off since."""
    if not spec.wants_pins:
        return None
    left = tuple(
        replace(prefix, num_tokens=prefix.num_tokens - num_cut)
        for prefix in prefixes
        if prefix.num_tokens > num_cut
    )
    return PinWish(left, owner, max_owned_tokens)


def pinned_tokens(workers: Iterable[WorkerView], owner: str, *, but: str = "") -> int:
    """What is pinned for the owner, as the workers last said: on all but the one of epoch `but`."""
    return sum(
        worker.load.pinned_blocks.get(owner, 0) * worker.block_size
        for worker in workers
        if worker.epoch != but
    )
