"""Which faults happen, when, and that they come again."""

from __future__ import annotations

import pytest

from core.config import Config, load_config
from core.errors import ConfigError
from core.faults import Fault, FaultAction, FaultPoint, Faults, make_faults, parse_faults

NUM = 60
SEND = FaultPoint.KV_SEND


def faults(spec: str, *, seed: int = 1, worker_id: str = "prefill-0") -> Faults:
    return Faults(parse_faults(spec), seed=seed, worker_id=worker_id)


def happened(spec: str, *, seed: int = 1, worker_id: str = "prefill-0") -> list[int]:
    """The occurrences of kv_send at which something happens, counted from 1."""
    made = faults(spec, seed=seed, worker_id=worker_id)
    return [number for number in range(1, NUM + 1) if made.take(SEND) is not None]


def test_by_default_there_are_none() -> None:
    assert make_faults(Config().faults.spec, seed=0, worker_id="decode-0") is None


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("", list(range(1, NUM + 1))),
        (":every=20", [20, 40, 60]),
        (":after=57", [58, 59, 60]),
        (":after=3:every=25", [28, 53]),
        (":once", [1]),
        (":after=4:once", [5]),
        (":every=7:times=2", [7, 14]),
        (":p=0", []),
        (":p=1", list(range(1, NUM + 1))),
        (":worker=prefill-0:once", [1]),
        (":worker=prefill-1", []),
    ],
)
def test_a_rule_applies_when_all_that_it_says_holds(when: str, expected: list[int]) -> None:
    assert happened(f"kv_send:fail{when}") == expected


def test_chance_comes_again_for_the_same_seed_and_worker_and_no_others() -> None:
    spec = "kv_send:drop:p=0.4"
    first = happened(spec)
    assert 10 < len(first) < 40
    assert happened(spec) == first
    assert happened(spec, seed=2) != first
    assert happened(spec, worker_id="prefill-1") != first


def test_points_are_counted_apart() -> None:
    made = faults("kv_send:fail:every=2,kv_recv:fail:every=2")
    assert made.take(SEND) is None
    assert made.take(FaultPoint.KV_RECV) is None
    assert made.take(SEND) == Fault(0.0, FaultAction.FAIL)
    assert (made.num_seen(SEND), made.num_seen(FaultPoint.STEP)) == (2, 0)


def test_delays_add_up_and_come_before_the_first_other_action() -> None:
    made = faults("kv_send:delay=0.5,kv_send:corrupt:once,kv_send:drop,kv_send:delay=1")
    assert made.take(SEND) == Fault(1.5, FaultAction.CORRUPT)
    assert made.take(SEND) == Fault(1.5, FaultAction.DROP)


def test_delays_can_be_ended() -> None:
    made = faults("step:delay=100000")
    made.end_delays()
    made.wait(100000)


def test_whoever_turns_faults_on_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert make_faults("step:fail:once", seed=3, worker_id="w") is not None
    assert "FAULTS ARE ON" in caplog.text and "step:fail:once" in caplog.text


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("kv_send", "point:action"),
        ("nowhere:fail", "nowhere"),
        ("step:explode", "explode"),
        ("step:corrupt", "at step there can be delay, fail"),
        ("session:drop", "at session"),
        ("step:delay", "a delay has seconds"),
        ("step:fail=1", "a delay has seconds"),
        ("step:delay=-1", "-1"),
        ("step:delay=nan", "nan"),
        ("step:fail:every=0", "'0'"),
        ("step:fail:after=x", "'x'"),
        ("step:fail:p=half", "half"),
        ("step:fail:often", "often"),
        ("step:fail:worker=", "worker="),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused_with_the_place(spec: str, named: str) -> None:
    with pytest.raises(ConfigError, match="faults.spec") as refused:
        load_config(environ={}, overrides=[f"faults.spec=store:fail:p=0.1,{spec}"])
    assert named in refused.value.message
