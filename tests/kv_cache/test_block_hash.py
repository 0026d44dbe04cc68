from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from kv_cache.block_hash import HASH_BYTES, block_hashes, extend, root_hash

ROOT = root_hash("compat", "salt", "adapter")
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=70)


def test_only_full_blocks_have_hashes() -> None:
    for num_tokens, num_full in [(0, 0), (1, 0), (15, 0), (16, 1), (17, 1), (32, 2)]:
        assert len(block_hashes(ROOT, range(num_tokens), 16)) == num_full


def test_every_part_of_the_root_matters() -> None:
    roots = [
        root_hash("ab", "c", ""),
        root_hash("a", "bc", ""),
        root_hash("ab", "", "c"),
        root_hash("", "ab", "c"),
        root_hash("ab", "c", "d"),
    ]
    assert len(set(roots)) == len(roots)
    assert {len(root) for root in roots} == {HASH_BYTES}


def test_a_salt_separates_equal_prompts() -> None:
    tokens = list(range(64))
    ours = block_hashes(root_hash("m", "ours"), tokens, 16)
    theirs = block_hashes(root_hash("m", "theirs"), tokens, 16)
    assert not set(ours) & set(theirs)


def test_equal_blocks_behind_different_prefixes_differ() -> None:
    first, second, third = block_hashes(ROOT, [7] * 48, 16)
    assert len({first, second, third}) == 3


def test_the_chain_is_made_of_single_steps() -> None:
    tokens = list(range(100, 132))
    first = extend(ROOT, tokens[:16])
    assert block_hashes(ROOT, tokens, 16) == [first, extend(first, tokens[16:])]


@given(TOKENS, st.sampled_from([8, 16]), st.data())
def test_hashing_in_pieces_equals_hashing_at_once(
    tokens: list[int], block_size: int, data: st.DataObject
) -> None:
    seen = data.draw(st.integers(0, len(tokens)))
    hashes = block_hashes(ROOT, tokens[:seen], block_size)
    hashes += block_hashes(ROOT, tokens, block_size, known=hashes)
    assert hashes == block_hashes(ROOT, tokens, block_size)


@given(TOKENS, TOKENS)
def test_hashes_agree_exactly_as_far_as_the_tokens_do(left: list[int], right: list[int]) -> None:
    pairs = zip(block_hashes(ROOT, left, 8), block_hashes(ROOT, right, 8), strict=False)
    for index, (a, b) in enumerate(pairs):
        end = (index + 1) * 8
        assert (a == b) == (left[:end] == right[:end])


def test_another_process_computes_the_same_hashes() -> None:
    code = (
        "from kv_cache.block_hash import *;"
        "print(block_hashes(root_hash('m', 's', 'a'), range(16), 16)[0].hex())"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert output == block_hashes(root_hash("m", "s", "a"), range(16), 16)[0].hex()
