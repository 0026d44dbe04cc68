"""What `tandem model` says."""

from __future__ import annotations

import pytest
from tandem_kernels.cpu.isa import LEVELS, cpu_features

from cli.model_info import served_dtype
from cli.sizes import parse_size, size_text
from core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8GiB", 8 * 2**30),
        ("24 GB", 24 * 10**9),
        ("1.5Mi", 3 * 2**19),
        ("1000", 1000),
        (" 2TiB ", 2 * 2**40),
    ],
)
def test_sizes_are_read_in_the_units_people_write(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "8 gib", "-1GB", "8 GiB or so"])
def test_what_is_no_size_is_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["512 B", "1.00 KiB", "93.81 MiB", "8.00 GiB", "2.00 TiB"])
def test_sizes_are_written_so_that_they_can_be_read(text: str) -> None:
    assert size_text(parse_size(text)) == text


@pytest.mark.parametrize(
    ("isa", "dtype"), [("avx512", "bfloat16"), ("avx2", "float32"), ("portable", "float32")]
)
def test_auto_precision_is_what_the_cpu_computes_fast(
    monkeypatch: pytest.MonkeyPatch, isa: str, dtype: str
) -> None:
    if not next(level for level in LEVELS if level.name == isa).features <= cpu_features():
        pytest.skip(f"this CPU doesn't run {isa}")
    monkeypatch.setenv("TANDEM_CPU_ISA", isa)
    assert served_dtype("auto") == dtype
    assert served_dtype("float32") == "float32"
