"""`tandem bench linears` measures every format it is asked for, and says what it cannot read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.linears_command import linears
from core.errors import ConfigError


def test_every_format_is_held_against_limits(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    formats = ["float32", "bfloat16", "int8", "int4", "w8a8"]
    linears(",".join(formats), "96x576", "1,13", 32, 1, "", file)
    report = json.loads(file.read_text())
    assert [(p["format"], p["rows"]) for p in report["points"]] == [
        (name, rows) for name in formats for rows in (1, 13)
    ]
    for point in report["points"]:
        assert point["seconds"] > 0
        assert point["share_of_read"] == pytest.approx(
            point["read_bytes_per_s"] / report["read_bytes_per_s"]
        )


@pytest.mark.parametrize(
    ("weight_format", "shape", "isa", "message"),
    [("int3", "8x8", "", "'int3'"), ("int8", "8", "", "''"), ("int8", "8x8", "mmx", "'mmx'")],
)
def test_what_cannot_be_measured_is_refused(
    weight_format: str, shape: str, isa: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        linears(weight_format, shape, "1", 32, 1, isa, None)
