"""Typed access to the loosely typed key-value files that models come with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from core.errors import ConfigError


class Fields:
    """A mapping whose reads check types; `where` names the file in errors.

    A key that is absent or null yields the default, or ConfigError if there is none.
    """

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        self.where = where
        self.values = values

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """One whole number or a list of them; empty if absent."""
        value = self.values.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if all(type(item) is int for item in values):
            return tuple(values)
        return tuple(Fields(self.where, {key: item}).integer(key) for item in values)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers; empty if absent."""
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise self._wrong(key, value, "a list of numbers")
        if all(type(item) is float for item in value):
            return tuple(value)
        return tuple(Fields(self.where, {key: item}).number(key) for item in value)

    def texts(self, key: str) -> list[str]:
        value = self._get(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of texts")
        return value

    def section(self, key: str) -> Fields:
        """A nested mapping; empty if absent."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Fields(f"{self.where}: {key}", value or {})

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise ConfigError(f"{self.where} lacks the key '{key}'")
        return value

    def _wrong(self, key: str, value: object, expected: str) -> ConfigError:
        return ConfigError(f"{self.where}: '{key}' is {str(value)[:80]!r}, not {expected}")


def read_json(path: Path) -> Fields | None:
    """The JSON object in a file; None if there is no such file. Raises ConfigError if malformed."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return Fields(str(path), values)
