"""CASES 11: one rank of a group dies, and nobody waits for it: the group ends as one, and its
requests go on elsewhere.

The group is what an operator starts by hand: a process of which the other ranks are children.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes_case_process import case_process, shared_state
from fakes_cases import CaseHouse, case_house, check_same, settings, some_tokens
from fakes_process import Child

from cluster.by_hand import EXIT_FAILED
from core import metric_names as names
from core.request import Phase

GROUP = "group"
NUM_RANKS = 4
"""Of a decode group, and in the slow suite of a prefill group; else that has two."""
NICE = 7
PROMPTS = [some_tokens(1500, seed=seed) for seed in range(3)]
ASKED = {"max_tokens": 300, "ignore_eos": True}
"""Long enough to be hit, prompt and answer."""
PACE = "faults.spec=step:delay=0.5:after=2"
"""So that it is still at work when it is hit, however late we hear of that."""
ENDING_S = 60.0
"""Far below the 600 s of a collective without a deadline."""


@dataclass(frozen=True)
class Scene:
    """A house whose only worker of a role is the group."""

    house: CaseHouse
    role: Phase
    num_ranks: int
    group: Child

    @property
    def ranks(self) -> list[int]:
        """Process ids, the leader first."""
        leader = self.group.process.pid
        children = Path(f"/proc/{leader}/task").glob("*/children")
        return [leader, *sorted(int(pid) for each in children for pid in each.read_text().split())]


@pytest.fixture(
    params=[
        (Phase.PREFILL, 2),
        (Phase.DECODE, NUM_RANKS),
        pytest.param((Phase.PREFILL, NUM_RANKS), marks=pytest.mark.slow),
    ],
    ids=lambda param: f"{param[0].value}-{param[1]}",
)
def scene(model: Path, redis_url: str, request: pytest.FixtureRequest) -> Iterator[Scene]:
    role: Phase
    num_ranks: int
    role, num_ranks = request.param
    shared = (
        *shared_state(redis_url),
        f"worker.prefill_nice={NICE}",
        "scheduler.prefill_chunk_tokens=64",
        "model.max_model_len=2048",
    )
    size = f"parallel.{role.value}_tensor_parallel_size={num_ranks}"
    patient = "parallel.step_timeout_s=60"  # ranks take turns on a busy machine
    with (
        case_process(role, GROUP, model, [*shared, size, patient, PACE]) as group,
        case_house(
            settings(model, *shared),
            prefill=int(role is not Phase.PREFILL),
            decode=int(role is not Phase.DECODE),
        ) as house,
    ):
        house.run(house.router.until_connected(2))
        yield Scene(house, role, num_ranks, group)


def test_a_group_by_hand_dies_as_one_and_its_requests_move(scene: Scene) -> None:
    house, ranks = scene.house, scene.ranks
    assert len(ranks) == scene.num_ranks
    if scene.role is Phase.PREFILL:
        assert min(os.getpriority(os.PRIO_PROCESS, pid) for pid in ranks) >= NICE

    async def test() -> None:
        asking = [asyncio.create_task(house.ask(prompt, **ASKED)) for prompt in PROMPTS]
        await house.until(lambda: house.blocks(GROUP, "running") > 0)
        os.kill(ranks[-1], signal.SIGKILL)
        assert await asyncio.to_thread(scene.group.end, ENDING_S) == EXIT_FAILED
        assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
        await house.add_worker(house.config, scene.role, "other")
        answers = await asyncio.gather(*asking)
        assert await house.metric(names.RETRIES_TOTAL) > 0
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            check_same(answer, await house.ask(prompt, cache_salt="alone", **ASKED))

    house.run(test())
