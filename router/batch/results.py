"""What a batch has answered so far, and the files that come of it. Blocking.

Each holder of the lease appends to a part of its own: `LINE KIND TOKENS JSON`, one line a result.
KIND is `.`, or `!` for an error, or `-` for a line that was not run; TOKENS `input,output,cached`.
A line of the input counts once, by the first part that has it, so a holder that doesn't know yet
that it lost the lease can't add a second answer. What was cut off when its writer died doesn't
count.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from router.batch.line_answer import LineResult

TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
_MARKS = (b".", b"!", b"-")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line's result lies."""

    part: Path
    offset: int
    num_bytes: int
    is_error: bool
    was_run: bool
    tokens: tuple[int, ...]
    """Input, output and cached ones."""


class PartWriter:
    """One holder's part. A result is whole, or not there."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def write(self, number: int, line: LineResult) -> None:
        """Raises OSError; after that nothing more may be written here."""
        mark = "-" if not line.was_run else "!" if line.is_error else "."
        tokens = ",".join(str(line.usage.get(name, 0)) for name in TOKENS)
        self._file.write(f"{number} {mark} {tokens} {json.dumps(line.result)}\n".encode())
        self._file.flush()

    def close(self) -> None:
        # What could not be written is no result, and has been told of.
        with contextlib.suppress(OSError):
            self._file.close()


def find_results(parts: list[Path]) -> dict[int, Place]:
    """By number of the input's line."""
    found: dict[int, Place] = {}
    for part in parts:
        for number, place in _results_of(part):
            found.setdefault(number, place)
    return found


def _results_of(part: Path) -> Iterator[tuple[int, Place]]:
    offset = 0
    with part.open("rb") as file:
        for line in file:
            head = line.split(b" ", 3)
            if line.endswith(b"\n") and len(head) == 4 and head[1] in _MARKS:
                size = len(head[3])
                tokens = tuple(int(count) for count in head[2].split(b","))
                begin = offset + len(line) - size
                yield (
                    int(head[0]),
                    Place(part, begin, size, head[1] != b".", head[1] != b"-", tokens),
                )
            offset += len(line)


def write_results(places: dict[int, Place], path: Path) -> None:
    """A new file of these, in the order of the input."""
    with contextlib.ExitStack() as stack:
        names = {place.part for place in places.values()}
        parts = {name: stack.enter_context(name.open("rb")) for name in names}
        out = stack.enter_context(path.open("xb"))
        for number in sorted(places):
            place = places[number]
            parts[place.part].seek(place.offset)
            out.write(parts[place.part].read(place.num_bytes))
