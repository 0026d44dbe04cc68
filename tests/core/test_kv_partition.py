"""Which KV heads each rank holds, for every group size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.kv_partition import kv_heads_of_rank, ranks_of_kv_head, share_of_rank


@given(num_items=st.integers(0, 500), tp_size=st.integers(1, 16))
def test_shares_follow_each_other_and_differ_by_one_at_most(num_items: int, tp_size: int) -> None:
    shares = [share_of_rank(num_items, tp_size, rank) for rank in range(tp_size)]
    assert [item for share in shares for item in share] == list(range(num_items))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(num_kv_heads=st.integers(1, 20), tp_size=st.integers(1, 20))
def test_heads_and_ranks_agree_on_who_holds_what(num_kv_heads: int, tp_size: int) -> None:
    held = {
        (rank, head)
        for rank in range(tp_size)
        for head in kv_heads_of_rank(num_kv_heads, tp_size, rank)
    }
    holders = {
        (rank, head)
        for head in range(num_kv_heads)
        for rank in ranks_of_kv_head(num_kv_heads, tp_size, head)
    }
    assert held == holders
    assert {head for _, head in held} == set(range(num_kv_heads))
    assert {rank for rank, _ in held} == set(range(tp_size))
    assert len(held) == max(num_kv_heads, tp_size)


@pytest.mark.parametrize(
    ("num_kv_heads", "tp_size", "expected"),
    [
        (8, 4, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (3, 2, [[0, 1], [2]]),
        (3, 4, [[0], [0], [1], [2]]),
        (2, 4, [[0], [0], [1], [1]]),
        (1, 3, [[0], [0], [0]]),
    ],
)
def test_the_documented_partitions(
    num_kv_heads: int, tp_size: int, expected: list[list[int]]
) -> None:
    held = [list(kv_heads_of_rank(num_kv_heads, tp_size, rank)) for rank in range(tp_size)]
    assert held == expected
