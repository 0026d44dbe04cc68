"""JSON that clients send inside a field: parsed where it comes as text, and bounded.

It is nested no deeper than a body may be, so that whoever walks it (templates, the guard, encoders)
comes to its end; and it holds nothing that JSON has no word for, so that it can be sent back.
"""

from __future__ import annotations

import json
import math
from typing import TypeVar

MAX_DEPTH = 200
"""What the parser of bodies itself allows."""

V = TypeVar("V")


def parsed_json(text: str) -> object:
    """What the text says. Raises ValueError with a sentence for clients."""
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep() from None
    return checked_json(value)


def checked_json(value: V) -> V:
    """The value itself, as JSON was parsed to it. Raises ValueError with a sentence for clients."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        if any(isinstance(each, float) and not math.isfinite(each) for each in level):
            raise ValueError("it holds a number that is not finite")
        level = [
            inner
            for each in level
            if not isinstance(each, float)
            for inner in _inside(each)
            if isinstance(inner, dict | list | float)
        ]
        if not level:
            return value
    raise _too_deep()


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {MAX_DEPTH} deep")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
