"""Running answers move between groups of ranks of other sizes: re-sharded, not computed anew.

Sums over ranks are in another order, so answers are compared with a lone engine's, ties apart.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fakes_asks import FILTERED, GREEDY, WARM
from fakes_byte_model import write_byte_model
from fakes_cases import some_tokens
from fakes_golden import Answer, Ask, check
from fakes_loop_thread import DEADLINE_S
from fakes_real_house import Front, real_house, settings, until_whole
from fakes_solo import Solo

from cluster.worker_shell import WorkerShell
from core import metric_names as names
from core.config import Config, ModelConfig
from core.request import Phase
from state.memory import MemoryStore
from text.hub import resolve
from text.model_card import load_card

# Nothing here is about deadlines: ranks take turns on a busy machine
PATIENT = ("parallel.step_timeout_s=120", "kv_transfer.verify=true", "worker.load_report_s=0.02")
PACE = "faults.spec=step:delay=0.05"
"""All answers run at once before the first one ends."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """8 query and 2 KV heads: of three ranks, two hold copies of one."""
    return f"model.model={write_byte_model(tmp_path_factory.mktemp('model'), num_heads=8)}"


def asks() -> list[Ask]:
    return [
        Ask(
            f"random {i}",
            tuple(some_tokens(length, seed=i)),
            replace((GREEDY, WARM, FILTERED)[i % 3], max_tokens=100, ignore_eos=True, logprobs=2),
            n=1 + i % 3,
        )
        for i, length in enumerate((5, 64, 96, 170, 33, 128))
    ]


async def num_pulled(front: Front) -> int:
    text = (await front.http.get("/metrics")).text
    wanted = f'{names.SEQUENCES_MOVED_TOTAL}{{outcome="pulled"}} '
    return sum(int(float(x.split()[-1])) for x in text.splitlines() if x.startswith(wanted))


async def drained_midway(front: Front, victim: WorkerShell) -> list[Answer]:
    """All answers; whoever runs half of them drains once all of them run."""
    asking = [asyncio.create_task(front.complete(ask)) for ask in asks()]
    fleet, changed = front.server.fleet, asyncio.Event()
    fleet.watch(changed.set)
    num_choices = sum(ask.n for ask in asks())
    while _running(front) < num_choices:
        changed.clear()
        await changed.wait()
    fleet.unwatch(changed.set)
    assert await victim.drain(DEADLINE_S) == 0
    return list(await asyncio.gather(*asking))


def _running(front: Front) -> int:
    loads = [x for m, x in front.server.fleet.loads() if m.role is Phase.DECODE]
    return 0 if any(x.kv_blocks["importing"] for x in loads) else sum(x.num_running for x in loads)


@pytest.mark.parametrize(
    ("from_ranks", "to_ranks"),
    [(2, 1), *(pytest.param(*p, marks=pytest.mark.slow) for p in [(1, 2), (2, 2), (3, 2), (2, 4)])],
)
def test_answers_move_from_a_group_to_another(model: str, from_ranks: int, to_ranks: int) -> None:
    config, store = settings(*PATIENT, model), MemoryStore()

    def group(num_ranks: int) -> Config:
        size = f"parallel.decode_tensor_parallel_size={num_ranks}"
        return settings(*PATIENT, model, size, PACE)

    with real_house() as house:
        shells = [
            house.shell(config, Phase.PREFILL, store, "prefill-0"),
            house.shell(group(from_ranks), Phase.DECODE, store, "victim"),
            house.shell(group(to_ranks), Phase.DECODE, store, "heir"),
        ]
        front = house.front(config, store)
        house.loop.run(front.until_connected(3))
        answers = house.loop.run(drained_midway(front, shells[1]))
        pulled = house.loop.run(num_pulled(front))
        for shell in shells:
            house.loop.run(until_whole(shell._address))
    assert pulled > 0
    solo = Solo(load_card(resolve(ModelConfig(model=model.partition("=")[2]))), model)
    for ask, answer in zip(asks(), answers, strict=True):
        check(ask, solo.answer(ask), answer, solo.next_logits)
        assert answer.usage is not None and answer.usage.completion_tokens == 100 * ask.n
