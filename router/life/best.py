"""What clients hear who don't want all that is generated: the best choices, or only the prompt."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from core.request import FinishReason
from router.life.choice import Delta, joined


async def best_choices(
    deltas: AsyncGenerator[Delta, None], n: int, *, tell_logprobs: bool
) -> AsyncGenerator[Delta, None]:
    """The `n` choices of the highest mean log-probability of their tokens, best first and numbered
    anew; whole, since nobody knows them before the last one has ended. Of equals, the first."""
    gained: dict[int, list[Delta]] = {}
    async with aclosing(deltas):
        async for delta in deltas:
            gained.setdefault(delta.choice, []).append(delta)
    whole = [choice for _, parts in sorted(gained.items()) if (choice := joined(parts))]
    whole.sort(key=_mean_logprob, reverse=True)
    for index, best in enumerate(whole[:n]):
        yield replace(best, choice=index, logprobs=best.logprobs if tell_logprobs else ())


async def only_ends(deltas: AsyncGenerator[Delta, None], n: int) -> AsyncGenerator[Delta, None]:
    """That each of the first `n` choices has ended, and nothing of it: for who asks for no
    tokens."""
    async with aclosing(deltas):
        async for delta in deltas:
            if delta.finish_reason is not None and delta.choice < n:
                yield Delta(delta.choice, "", (), finish_reason=FinishReason.LENGTH)


def _mean_logprob(delta: Delta) -> float:
    return sum(p.logprob for p in delta.logprobs) / max(1, len(delta.logprobs))
