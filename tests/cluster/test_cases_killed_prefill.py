"""A prefill worker is killed with requests in flight: they are retried, and no others.

The victim is a process of its own that gets stuck in a chosen step, with its requests at known
stages; then it is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from fakes_case_process import case_process, shared_state
from fakes_cases import CaseHouse, ask, case_house, check_same, settings, some_tokens
from fakes_process import Child

from core import metric_names as names
from core.request import Phase

VICTIM = "prefill-victim"
CHUNK = 64
NUM_IN_FLIGHT = 8
NUM_TOKENS = 2 * CHUNK
"""Of each prompt: two steps of the victim, if it computes nothing else."""
NUM_BYSTANDERS = 2


@pytest.fixture
def scene(
    model: Path, redis_url: str, request: pytest.FixtureRequest
) -> Iterator[tuple[CaseHouse, Child]]:
    """A house whose only P is the victim, which computes so many steps and then never another."""
    shared = (
        *shared_state(redis_url),
        f"scheduler.prefill_chunk_tokens={CHUNK}",
        "router.dispatch_ahead_tokens=100000",  # all of them at once, none waits at the router
    )
    stuck = f"faults.spec=step:delay=100000:after={request.param}"
    with (
        case_process(Phase.PREFILL, VICTIM, model, [*shared, stuck]) as victim,
        case_house(settings(model, *shared), prefill=0) as house,
    ):
        house.run(house.router.until_connected(2))
        yield house, victim


def load(house: CaseHouse, worker_id: str) -> int:
    """Attempts that wait or run there."""
    loads = house.router.server.fleet.loads()
    return sum(x.num_waiting + x.num_running for m, x in loads if m.worker_id == worker_id)


def num_routed(house: CaseHouse) -> int:
    """Attempts that the router has given the victim, by its own count."""
    return next(v.num_routed for v in house.router.server.fleet.views() if v.worker_id == VICTIM)


def decodes(house: CaseHouse, num_requests: int) -> bool:
    """Whether D runs so many, with all their KV."""
    return load(house, "decode-0") == num_requests and house.blocks("decode-0", "importing") == 0


# The bystanders' prompts are a step each; then one prompt of eight has sent its first chunk.
@pytest.mark.parametrize("scene", [NUM_BYSTANDERS + 1], indirect=True)
def test_only_the_requests_of_a_killed_worker_are_retried(scene: tuple[CaseHouse, Child]) -> None:
    """Case 7. One of the eight dies in the middle of its transfer, the others before theirs."""
    house, victim = scene
    prompts = [some_tokens(NUM_TOKENS, seed=number) for number in range(NUM_IN_FLIGHT)]

    async def bystander(number: int) -> None:
        prompt = some_tokens(20, seed=90 + number)
        await ask(house.router, prompt, max_tokens=7000, ignore_eos=True)

    async def test() -> None:
        bystanders = []
        for number in range(NUM_BYSTANDERS):
            bystanders.append(asyncio.create_task(bystander(number)))
            await house.until(partial(decodes, house, number + 1))
        asking = [asyncio.create_task(ask(house.router, p, max_tokens=9)) for p in prompts]
        await house.until(lambda: num_routed(house) == NUM_BYSTANDERS + NUM_IN_FLIGHT)
        await house.until(lambda: house.blocks("decode-0", "importing") > 0)
        await asyncio.to_thread(victim.process.kill)
        house.d.steps.hold()  # or the bystanders are done before there is another P
        await house.add_worker(house.config, Phase.PREFILL, "prefill-1")
        house.d.steps.release()
        answers = await asyncio.gather(*asking)
        assert not any(task.done() for task in bystanders), "D went on with them"
        assert house.d.transferred.failures.keys() <= {"peer_lost"}
        for task in bystanders:
            task.cancel()
        await asyncio.wait(bystanders)
        await house.check_whole()
        assert await house.metric(names.RETRIES_TOTAL) == NUM_IN_FLIGHT
        for prompt, answer in zip(prompts, answers, strict=True):
            check_same(answer, await house.ask(prompt, max_tokens=9, cache_salt="alone"))

    house.run(test())
