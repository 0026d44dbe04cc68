"""A batch's input file, and what its results say of each of its lines (pure)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.lengths import LengthRange
from bench.prompts import TokenRange, prompt_token_ids
from bench.workload import synthetic_items, take

ENDPOINT = "/v1/completions"


@dataclass(frozen=True, slots=True)
class LineShape:
    """What a batch is made of."""

    num_lines: int = 500
    inputs: LengthRange = LengthRange(128, 128)
    outputs: LengthRange = LengthRange(16, 16)


def custom_ids(shape: LineShape) -> list[str]:
    """The names of a batch's lines."""
    return [f"line-{number}" for number in range(shape.num_lines)]


def input_file(shape: LineShape, model: str, tokens: TokenRange, seed: str) -> bytes:
    """The file's bytes. Batches of different seeds share no prefix."""
    endless = synthetic_items(shape.inputs, shape.outputs, seed)
    items = take(endless, num_requests=shape.num_lines, duration_s=None)
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": ENDPOINT,
            "body": {
                "model": model,
                "prompt": prompt_token_ids(item, seed, tokens),
                "max_tokens": item.output_len,
                "temperature": 0,
                "ignore_eos": True,
            },
        }
        for name, item in zip(custom_ids(shape), items, strict=True)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@dataclass(frozen=True, slots=True)
class LineCounts:
    """A batch's lines by what its two result files say of them."""

    num_lines: int
    num_answered: int
    """In the output file, with an answer."""
    num_failed: int
    """In the error file."""
    num_missing: int
    num_repeated: int
    """Results beyond a line's first, and of lines that nobody asked for."""

    @property
    def is_complete(self) -> bool:
        """Every line was answered once."""
        return self.num_answered == self.num_lines and not (
            self.num_failed or self.num_missing or self.num_repeated
        )


def count_lines(
    names: Sequence[str], output: Sequence[dict[str, Any]], errors: Sequence[dict[str, Any]]
) -> LineCounts:
    """Compares results with the lines that were sent."""
    seen = Counter(str(result["custom_id"]) for result in (*output, *errors))
    known = set(names)
    good = [r for r in output if r["error"] is None and r["response"]["status_code"] == 200]
    return LineCounts(
        num_lines=len(names),
        num_answered=len({r["custom_id"] for r in good} & known),
        num_failed=len(errors) + len(output) - len(good),
        num_missing=len(known - seen.keys()),
        num_repeated=sum(count - (name in known) for name, count in seen.items()),
    )
