"""Query heads among ranks: each once, and always where its KV head is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ConfigError
from model.head_partition import HeadPartition


@given(num_kv_heads=st.integers(1, 12), group_size=st.integers(1, 8), tp_size=st.integers(1, 16))
def test_every_query_head_has_one_rank_and_its_kv_head_there(
    num_kv_heads: int, group_size: int, tp_size: int
) -> None:
    copies = -(-tp_size // num_kv_heads)
    if copies > group_size:
        with pytest.raises(ConfigError, match=f"tensor_parallel_size {tp_size}"):
            HeadPartition(num_kv_heads * group_size, num_kv_heads, tp_size)
        return
    partition = HeadPartition(num_kv_heads * group_size, num_kv_heads, tp_size)
    ranks = [partition.rank(rank) for rank in range(tp_size)]
    assert [h for r in ranks for h in r.query] == list(range(num_kv_heads * group_size))
    for rank in ranks:
        # What attention does with local numbers must be what the whole model does
        local_group = len(rank.query) // len(rank.kv)
        assert local_group * len(rank.kv) == len(rank.query) > 0
        for i, head in enumerate(rank.query):
            assert rank.kv[i // local_group] == head // group_size


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "tp_size", "sizes"),
    [
        (9, 3, 1, [(9, 3)]),
        (9, 3, 2, [(6, 2), (3, 1)]),
        (9, 3, 3, [(3, 1), (3, 1), (3, 1)]),
        (9, 3, 4, [(2, 1), (1, 1), (3, 1), (3, 1)]),
        (8, 2, 2, [(4, 1), (4, 1)]),
        (8, 2, 4, [(2, 1), (2, 1), (2, 1), (2, 1)]),
    ],
)
def test_heads_per_rank_of_common_shapes(
    num_heads: int, num_kv_heads: int, tp_size: int, sizes: list[tuple[int, int]]
) -> None:
    partition = HeadPartition(num_heads, num_kv_heads, tp_size)
    ranks = [partition.rank(rank) for rank in range(tp_size)]
    assert [(len(r.query), len(r.kv)) for r in ranks] == sizes
