"""The table of docs/FIELDS.md, read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parent.parent / "docs" / "FIELDS.md"


@dataclass(frozen=True)
class Row:
    """One field; the columns as they stand there."""

    field: str
    chat: str
    completions: str
    grpc: tuple[str, ...]
    text: str


def rows() -> list[Row]:
    found = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            field, chat, completions, grpc, text = (c.strip() for c in line.split("|")[1:-1])
            names = tuple(re.findall(r"`([^`]+)`", grpc))
            found.append(Row(field.strip("`"), chat, completions, names, text))
    return found
