"""Which KV heads each rank of a tensor-parallel group holds.

It lies here because the model that writes the heads and the links that move them must agree on it,
and may not import each other. Heads are never split nor padded:

    8 heads, 4 ranks   | 0 1 | 2 3 | 4 5 | 6 7 |
    3 heads, 2 ranks   |  0 1   |  2   |         the first ranks hold one more
    3 heads, 4 ranks   | 0 | 0 | 1 | 2 |         more ranks than heads: heads are replicated
"""

from __future__ import annotations


def share_of_rank(num_items: int, tp_size: int, tp_rank: int) -> range:
    """The contiguous share of `tp_rank`: sizes differ by one at most, larger ones first."""
    assert 0 <= tp_rank < tp_size
    small, num_larger = divmod(num_items, tp_size)
    start = tp_rank * small + min(tp_rank, num_larger)
    return range(start, start + small + (tp_rank < num_larger))


def ranks_of_kv_head(num_kv_heads: int, tp_size: int, head: int) -> range:
    """The ranks that hold `head`: one, or several copies where ranks outnumber heads."""
    assert 0 <= head < num_kv_heads
    if tp_size >= num_kv_heads:
        return share_of_rank(tp_size, num_kv_heads, head)
    holders = (r for r in range(tp_size) if head in share_of_rank(num_kv_heads, tp_size, r))
    rank = next(holders)
    return range(rank, rank + 1)


def kv_heads_of_rank(num_kv_heads: int, tp_size: int, tp_rank: int) -> range:
    """The heads, by their numbers in the whole model, that `tp_rank` holds; at least one."""
    if tp_size <= num_kv_heads:
        return share_of_rank(num_kv_heads, tp_size, tp_rank)
    assert 0 <= tp_rank < tp_size
    head = next(
        h for h in range(num_kv_heads) if tp_rank in ranks_of_kv_head(num_kv_heads, tp_size, h)
    )
    return range(head, head + 1)
