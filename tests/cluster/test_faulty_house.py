"""Faults at every point of a real house: what can be borne is borne, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes_cases import CaseHouse, Json, case_house, check_same, post, settings, some_tokens

from core.errors import WorkerLostError
from core.faults import FaultPoint

NUM_ASKS = 6


@pytest.fixture(scope="module")
def undisturbed(model: Path) -> list[Json]:
    with case_house(settings(model)) as house:
        return [house.run(_ask(house, number)) for number in range(NUM_ASKS)]


async def _ask(house: CaseHouse, number: int) -> Json:
    answer = await house.ask(some_tokens(60 + number, seed=number), max_tokens=8, ignore_eos=True)
    await house.check_whole()
    return answer


@pytest.mark.parametrize(
    "spec",
    [
        "kv_pack:fail:every=3",
        "kv_send:fail:every=3",
        "kv_recv:fail:every=3",
        "kv_control:fail:every=7",
        "kv_control:delay=0.02:p=0.3",
        "kv_pack:delay=0.02,kv_send:delay=0.02,kv_recv:delay=0.02,step:delay=0.01:every=3",
        "session:fail:after=15:times=2",
        "session:delay=0.02:every=4",
        "store:fail:after=1:p=0.5",
        "store:delay=0.2:after=1",
    ],
)
def test_every_answer_is_right_and_every_pool_whole(
    model: Path, undisturbed: list[Json], spec: str
) -> None:
    """A send that fails to post is among them."""
    overrides = (f"faults.spec={spec}", "router.max_attempts=8", "worker.heartbeat_s=0.1")
    with case_house(settings(model, *overrides), members_expire=True) as house:
        for number, expected in enumerate(undisturbed):
            check_same(house.run(_ask(house, number)), expected)


def test_a_step_that_fails_ends_its_worker_with_the_cause(model: Path) -> None:
    """Whoever runs the worker replaces it; here nobody does, and the request is told."""
    spec = "faults.spec=step:fail:once:worker=prefill-0"
    brief = ("router.no_worker_timeout_s=0.5", "router.max_attempts=2")

    async def test(house: CaseHouse) -> None:
        dead = house.p
        answer = post(house.router, some_tokens(60), max_tokens=3)
        async with house.asking(some_tokens(50), max_tokens=3):
            with pytest.raises(WorkerLostError, match="a fault at step"):
                await dead.wait_ended()
            await house.stop(dead)
        assert (await answer).status_code == 503
        await house.check_whole()

    with case_house(settings(model, spec, *brief)) as house:
        house.run(test(house))


def test_without_a_spec_nothing_is_wrapped(model: Path) -> None:
    """The hook costs nothing when it is off: it isn't there."""
    with case_house(settings(model)) as house:
        for worker in house.workers:
            assert worker._faults is None
            assert worker._store is house.store
            assert type(worker.parts.links).__name__ == "NearestLinkMaker"


def test_points_see_what_happens(model: Path) -> None:
    """Each point is passed by its worker, and only by that."""
    with case_house(settings(model, "faults.spec=kv_send:fail:after=1000")) as house:
        house.run(_ask(house, 0))
        of_p, of_d = house.p._faults, house.d._faults
        assert of_p is not None and of_d is not None
        of_both = (FaultPoint.KV_CONTROL, FaultPoint.STEP, FaultPoint.SESSION, FaultPoint.STORE)
        for point in FaultPoint:
            assert (of_p.num_seen(point) > 0) == (point in of_both or point in _OF_P), point
            assert (of_d.num_seen(point) > 0) == (point in of_both or point in _OF_D), point


_OF_P, _OF_D = (FaultPoint.KV_PACK, FaultPoint.KV_SEND), (FaultPoint.KV_RECV,)
