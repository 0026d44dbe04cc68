from __future__ import annotations

from dataclasses import replace

import pytest

from core.compat import compat_key
from core.errors import ConfigError
from core.kv_spec import KVGroup, KVSpec, resolve_kv_dtype

SPEC = KVSpec((KVGroup(30, 3, 64), KVGroup(2, 3, 64, window=128)), 16, "bfloat16")
ROWS = 2 * 32 * 3
"""Keys and values of 32 layers and 3 heads: rows of one token."""


@pytest.mark.parametrize(
    ("dtype", "row_bytes"),
    [("float32", 256), ("bfloat16", 128), ("float16", 128), ("int8", 66), ("fp8", 66)],
)
def test_a_token_takes_its_values_and_where_they_are_quantised_its_scales(
    dtype: str, row_bytes: int
) -> None:
    spec = replace(SPEC, dtype=dtype)
    assert spec.bytes_per_token == ROWS * row_bytes
    assert spec.bytes_per_block == 16 * ROWS * row_bytes


def test_kv_is_stored_as_it_is_computed_unless_told_otherwise() -> None:
    assert resolve_kv_dtype("auto", "bfloat16") == "bfloat16"
    assert resolve_kv_dtype("bfloat16", "bfloat16") == "bfloat16"
    assert resolve_kv_dtype("int8", "bfloat16") == "int8"


def test_a_float_type_other_than_the_arithmetics_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_dtype is float32.*model\.dtype to float32"):
        resolve_kv_dtype("float32", "bfloat16")


def test_workers_with_kv_of_different_types_are_no_pair() -> None:
    keys = {
        compat_key(
            weights_digest="w", quantization="none", rope="r", kv_spec=replace(SPEC, dtype=dtype)
        )
        for dtype in ("float32", "bfloat16", "int8", "fp8")
    }
    assert len(keys) == 4
