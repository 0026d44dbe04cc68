"""Two 1P+1D servers that differ in one thing: whether KV travels while the prefill computes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

from bench.client import Target, with_model
from bench.handoff import HandoffReport, compare_handoffs
from bench.lengths import LengthRange
from bench.load_plan import LoadPlan
from bench.progress import Progress
from bench.runner import Timer
from bench.tandem_server import server_at

OVERLAP_ON, OVERLAP_OFF = "overlap on", "overlap off"
# Long enough to see D's steps follow each other, short enough for the prefill to dominate.
_OUTPUT_LEN = 8


def handoff_plan(input_len: int, num_requests: int, seed: str) -> LoadPlan:
    """Equal prompt lengths, a short answer, one warm-up request for links and pools."""
    return LoadPlan(
        inputs=LengthRange(input_len, input_len),
        outputs=LengthRange(_OUTPUT_LEN, _OUTPUT_LEN),
        num_requests=num_requests,
        warmup=2,
        seed=seed,
    )


async def measure_handoffs(
    urls: Mapping[str, str | None],
    settings: Mapping[str, str],
    plan: LoadPlan,
    timer: Timer,
    *,
    repeats: int,
    progress: Progress,
) -> HandoffReport:
    """Measures the servers at the URLs; those without one are started with the settings."""
    targets: dict[str, Target] = {}
    async with AsyncExitStack() as stack:
        for name, url in urls.items():
            overlap = {"kv_transfer.overlap": str(name == OVERLAP_ON).lower()}
            progress(f"starting 1P+1D with {name}" if url is None else f"{name}: {url}")
            served_at = await stack.enter_async_context(server_at(url, {**settings, **overlap}))
            target = Target(base_url=served_at, ignore_eos=True, include_timings=True)
            targets[name] = await with_model(target, timer)
        return await compare_handoffs(targets, plan, timer, repeats=repeats, progress=progress)
