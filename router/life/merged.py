"""Several generations as one stream, for requests with more than one prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from router.generation import Generation
from router.life.choice import Delta

Numbered = tuple[int, Delta]
"""Which prompt, and what one of its choices gained."""


async def merged(generations: Sequence[Generation]) -> AsyncGenerator[Numbered, None]:
    """Deltas of all generations in the order in which they come; the first error ends all."""
    if len(generations) == 1:
        async with aclosing(generations[0].deltas()) as deltas:
            async for delta in deltas:
                yield 0, delta
        return
    results: asyncio.Queue[Numbered | asyncio.Task[None]] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(i, g, results)) for i, g in enumerate(generations)]
    try:
        for pump in pumps:
            pump.add_done_callback(results.put_nowait)
        num_open = len(pumps)
        while num_open:
            # Bounded by every generation's own deadline: each pump ends.
            result = await results.get()
            if isinstance(result, asyncio.Task):
                result.result()
                num_open -= 1
            else:
                yield result
    finally:
        for pump in pumps:
            pump.cancel()
        # One that fails by itself as it is cancelled would be heard of by nobody else
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    number: int, generation: Generation, results: asyncio.Queue[Numbered | asyncio.Task[None]]
) -> None:
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            results.put_nowait((number, delta))
