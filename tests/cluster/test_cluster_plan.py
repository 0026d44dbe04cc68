"""Which workers a configuration asks for, and what they may use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.plan import (
    num_ranks,
    num_sharers,
    threads_per_rank,
    with_num_threads,
    worker_specs,
)
from core.config import Config, load_config
from core.request import Phase


def config(*overrides: str) -> Config:
    return load_config(environ={}, overrides=overrides)


def test_prefill_workers_come_first_and_are_numbered_within_their_role() -> None:
    specs = worker_specs(
        config("cluster.num_prefill_workers=2", "cluster.num_decode_workers=3"), num_cores=10
    )
    names = ["prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2"]
    assert [spec.worker_id for spec in specs] == names
    assert [spec.role for spec in specs] == [Phase.PREFILL] * 2 + [Phase.DECODE] * 3
    assert {spec.num_threads for spec in specs} == {2}


def test_without_prefill_workers_only_decode_workers_are_planned() -> None:
    (spec,) = worker_specs(config("cluster.num_prefill_workers=0"), num_cores=2)
    assert (spec.worker_id, spec.num_threads) == ("decode-0", 2)


def test_every_rank_of_a_group_counts_when_cores_are_shared_out() -> None:
    specs = worker_specs(config("parallel.tensor_parallel_size=2"), num_cores=8)
    assert [(spec.num_ranks, spec.num_threads) for spec in specs] == [(2, 2), (2, 2)]


@given(num_cores=st.integers(1, 256), num_ranks=st.integers(0, 64))
def test_threads_never_exceed_the_cores_unless_there_are_more_ranks(
    num_cores: int, num_ranks: int
) -> None:
    threads = threads_per_rank(Config(), num_cores=num_cores, num_ranks=num_ranks)
    assert threads >= 1
    assert threads * num_ranks <= max(num_cores, num_ranks)


def test_a_configured_number_of_threads_is_kept() -> None:
    assert threads_per_rank(config("parallel.num_threads=5"), num_cores=2, num_ranks=4) == 5


def test_a_rank_gets_its_threads_written_into_a_configuration_of_its_own() -> None:
    shared = Config()
    assert with_num_threads(shared, 3).parallel.num_threads == 3
    assert shared.parallel.num_threads is None


def test_each_role_may_have_a_number_of_ranks_of_its_own() -> None:
    both = config("parallel.tensor_parallel_size=2", "parallel.decode_tensor_parallel_size=3")
    assert (num_ranks(both, Phase.PREFILL), num_ranks(both, Phase.DECODE)) == (2, 3)
    specs = worker_specs(both, num_cores=10)
    assert [(spec.num_ranks, spec.num_threads) for spec in specs] == [(2, 2), (3, 2)]
    assert num_sharers(both) == 5
    assert num_ranks(config("parallel.prefill_tensor_parallel_size=4"), Phase.PREFILL) == 4


def test_every_rank_of_every_worker_shares_the_machine() -> None:
    three = config("cluster.num_decode_workers=2", "parallel.tensor_parallel_size=3")
    assert num_sharers(three) == 9
