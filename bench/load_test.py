"""A load test: warm up, send the requests of one load, sum up what came back."""

from __future__ import annotations

from dataclasses import replace

from bench.client import OpenAIClient, Target, prepare, with_model
from bench.load_plan import Load, LoadPlan
from bench.record import RequestRecord
from bench.report import PointReport, ServeReport, point_report
from bench.runner import Timer, run_closed, run_open

# Enough for a server to fill a batch once, without making a long warm-up of a small run.
_WARMUP_CONCURRENCY = 8


async def load_test(
    target: Target, plan: LoadPlan, loads: tuple[Load, ...], timer: Timer, *, name: str = ""
) -> ServeReport:
    """Runs every load in turn against one server. Raises ServerError if it can't be asked."""
    target = await with_model(target, timer)
    client = OpenAIClient(target, timer)
    points: list[PointReport] = []
    try:
        await warm_up(client, plan, timer)
        for load in loads:
            points.append(point_report(load, await send_load(client, plan, load, timer), plan.slo))
    finally:
        client.close()
    return ServeReport(
        name=name or target.model,
        base_url=target.base_url,
        model=target.model,
        endpoint=target.endpoint,
        settings=describe(plan, target),
        points=tuple(points),
        slo=plan.slo,
    )


async def warm_up(client: OpenAIClient, plan: LoadPlan, timer: Timer) -> None:
    """Sends the plan's warm-up requests; what they measure is thrown away."""
    items = [prepare(item, client.target, plan.warmup_seed) for item in plan.warmup_items()]
    await run_closed(items, client.send, concurrency=_WARMUP_CONCURRENCY, timer=timer)


async def send_load(
    client: OpenAIClient, plan: LoadPlan, load: Load, timer: Timer
) -> list[RequestRecord]:
    """Sends one load's requests, prepared beforehand if their number is known."""
    seed = plan.prompt_seed(load)
    requests = (prepare(item, client.target, seed) for item in plan.items(load))
    if load.kind != "concurrency":
        return await run_open(list(requests), client.send, timer=timer)
    timed = plan.duration_s is not None
    return await run_closed(
        requests if timed else list(requests),
        client.send,
        concurrency=int(load.value),
        timer=timer,
        duration_s=plan.duration_s,
    )


def describe(plan: LoadPlan, target: Target) -> dict[str, str]:
    """The settings that decide what was measured, for the report."""
    shape = (
        f"in {plan.inputs.low}:{plan.inputs.high}, out {plan.outputs.low}:{plan.outputs.high}"
        if plan.trace is None
        else f"trace of {len(plan.trace)} rows"
    )
    return {
        "workload": shape,
        "prompts": target.prompt_kind,
        "ignore_eos": str(target.ignore_eos).lower(),
        "temperature": f"{target.temperature:g}",
        "burstiness": f"{plan.burstiness:g}",
        "warmup": str(plan.warmup),
        "seed": plan.seed,
    }


def reseeded(plan: LoadPlan, repeat: int) -> LoadPlan:
    """The plan of a repetition: other prompts of the same lengths' distribution."""
    return replace(plan, seed=f"{plan.seed}/{repeat}") if repeat else plan
