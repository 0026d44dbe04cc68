from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kv_cache.window import num_blocks_outside


def test_full_attention_keeps_every_block() -> None:
    assert num_blocks_outside(10_000, None, 16) == 0


def test_a_block_goes_when_its_last_token_leaves_the_window() -> None:
    # The token at position 47 sees 16..47, the one at 46 sees 15..46.
    assert num_blocks_outside(46, 32, 16) == 0
    assert num_blocks_outside(47, 32, 16) == 1
    assert num_blocks_outside(62, 32, 16) == 1
    assert num_blocks_outside(63, 32, 16) == 2


def test_a_window_not_yet_full_releases_nothing() -> None:
    assert all(num_blocks_outside(n, 4096, 16) == 0 for n in range(4096))


@given(st.integers(0, 500), st.integers(1, 100), st.sampled_from([8, 16]))
def test_exactly_the_blocks_that_no_later_token_sees_are_outside(
    num_computed: int, window: int, block_size: int
) -> None:
    visible = {
        key // block_size
        for query in range(num_computed, num_computed + 3)
        for key in range(max(query - window + 1, 0), query + 1)
    }
    assert num_blocks_outside(num_computed, window, block_size) == min(visible)
