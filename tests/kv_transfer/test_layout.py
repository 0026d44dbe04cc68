from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import TransferError
from kv_transfer.layout import blocks_per_message, plan_routes


def _split(num_heads: int, num_ranks: int) -> list[list[int]]:
    """Heads in runs, each rank at least one; a head on several ranks where there are too few."""
    if num_heads < num_ranks:
        return [[rank * num_heads // num_ranks] for rank in range(num_ranks)]
    bounds = [rank * num_heads // num_ranks for rank in range(num_ranks + 1)]
    return [list(range(a, b)) for a, b in zip(bounds, bounds[1:], strict=False)]


def _received(prefill: list[list[int]], decode: list[list[int]]) -> list[list[int | None]]:
    """Carries every route out on lists of head ids."""
    held: list[list[int | None]] = [[None] * len(heads) for heads in decode]
    for route in plan_routes(prefill, decode):
        sent = prefill[route.prefill_rank][route.prefill_heads]
        assert len(sent) == route.num_heads > 0
        place = held[route.decode_rank]
        assert place[route.decode_heads] == [None] * route.num_heads, "a head travels once"
        place[route.decode_heads] = sent
    return held


@given(st.integers(1, 8), st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3, 4]))
def test_every_decode_rank_gets_exactly_its_heads_for_every_pair_of_sizes(
    num_heads: int, prefill_ranks: int, decode_ranks: int
) -> None:
    prefill, decode = _split(num_heads, prefill_ranks), _split(num_heads, decode_ranks)
    assert _received(prefill, decode) == decode


_ranks = st.lists(st.lists(st.integers(0, 5), min_size=1, unique=True), min_size=1, max_size=4)


@given(_ranks, _ranks)
def test_heads_held_in_any_order_and_any_number_of_times_arrive_once_each(
    prefill: list[list[int]], decode: list[list[int]]
) -> None:
    prefill = [*prefill, [0, 1, 2, 3, 4, 5]]
    assert _received(prefill, decode) == decode


def test_equal_sizes_need_one_route_for_each_rank() -> None:
    heads = _split(8, 4)
    routes = plan_routes(heads, heads)
    assert [(r.prefill_rank, r.decode_rank) for r in routes] == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_copies_of_a_head_share_the_decode_ranks_between_them() -> None:
    routes = plan_routes([[0], [0], [1], [1]], [[0], [0], [1], [1]])
    assert [r.prefill_rank for r in routes] == [0, 1, 2, 3]


def test_a_head_that_no_prefill_rank_holds_is_refused() -> None:
    with pytest.raises(TransferError, match="KV head 2") as error:
        plan_routes([[0], [1]], [[0, 1, 2]])
    assert error.value.reason == "incompatible"


@pytest.mark.parametrize(("limit", "expected"), [(99, 1), (100, 1), (299, 2), (300, 3)])
def test_a_message_holds_as_many_blocks_as_fit_and_at_least_one(limit: int, expected: int) -> None:
    assert blocks_per_message(limit, 100) == expected
