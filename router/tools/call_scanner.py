"""One call as a JSON object, `{"name": ..., "arguments": {...}}`, read character by character.

The arguments are passed on as they come, once the name is known; those that are themselves a string
of JSON, as some models write them, when the string is complete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from router.tools.call_event import CallArguments, CallStart, Piece
from router.tools.json_value import SPACE, StringScanner, ValueScanner

_ARGUMENTS = ("arguments", "parameters")
_KNOWN_KEYS = {"name", "type", "id", *_ARGUMENTS}


class CallScanner:
    """Takes characters until the object is complete, or can't be a call any more."""

    def __init__(self, names: Collection[str] | None = None) -> None:
        """`names`: what else is called is no call."""
        self.done = False
        self.failed = False
        """It is no call. If nothing was started, `raw` is content."""
        self.started = False
        self.raw = ""
        self._names = names
        self._key = ""
        self._has_arguments = False
        self._pending = ""  # arguments that came before the name
        self._out: list[Piece] = []
        self._string = StringScanner()
        self._value = ValueScanner("{")
        self._raw_value = ""
        self._step: Callable[[str], None] = self._open

    def push(self, character: str) -> None:
        """One more character; none after `done` or `failed`."""
        if not self.started:
            self.raw += character
        self._step(character)

    def take(self) -> list[Piece]:
        """What was found since the last call of this."""
        pieces, self._out = self._out, []
        return pieces

    def read(self, text: str, begins: Callable[[], None]) -> str | None:
        """Takes characters until the object is over: what is left then, which isn't part of a call;
        None if it goes on. `begins` is called when it turns out to be one."""
        for i, character in enumerate(text):
            started = self.started
            self.push(character)
            if self.started and not started:
                begins()
            if self.done or self.failed:
                return ("" if self.started else self.raw) + text[i + 1 :]
        return None

    def _open(self, character: str) -> None:
        if character == "{":
            self._step = self._key_or_end
        elif character not in SPACE:
            self.failed = True

    def _key_or_end(self, character: str) -> None:
        if character == "}":
            self._close()
        else:
            self._before_key(character)

    def _before_key(self, character: str) -> None:
        if character == '"':
            self._string, self._step = StringScanner(), self._in_key
        elif character not in SPACE:
            self.failed = True

    def _in_key(self, character: str) -> None:
        if self._string.push(character):
            self._key = _parsed_string(self._string.raw) or ""
            self.failed = self._key not in _KNOWN_KEYS
            self._step = self._colon

    def _colon(self, character: str) -> None:
        if character == ":":
            self._step = self._before_value
        elif character not in SPACE:
            self.failed = True

    def _before_value(self, character: str) -> None:
        if character in SPACE:
            return
        self._value = ValueScanner(character)
        self.failed = not self._value.is_value
        self._raw_value = character
        self._step = self._in_value
        if self._streams:
            self._has_arguments = True
            self._add_arguments(character)

    def _in_value(self, character: str) -> None:
        if self._value.ends_before(character):
            self._end_value()
            if not self.failed:
                self._after_value(character)
            return
        if self._streams:
            self._add_arguments(character)
        else:
            self._raw_value += character
        if self._value.ends_with(character):
            self._end_value()

    @property
    def _streams(self) -> bool:
        return self._key in _ARGUMENTS and self._value.is_composite

    def _end_value(self) -> None:
        self._step = self._after_value
        if self._key == "name":
            self._name(_parsed_string(self._raw_value))
        elif self._key in _ARGUMENTS and not self._value.is_composite:
            self._has_arguments = True
            inner = _parsed_string(self._raw_value)
            if inner is None and self._raw_value != "null":
                self.failed = True
            self._add_arguments(inner or "{}")

    def _name(self, name: str | None) -> None:
        if not name or self.started or (self._names is not None and name not in self._names):
            self.failed = True
            return
        self.started = True
        self._out.append(CallStart(name))
        self._add_arguments(self._pending)

    def _after_value(self, character: str) -> None:
        if character == ",":
            self._step = self._before_key
        elif character == "}":
            self._close()
        elif character not in SPACE:
            self.failed = True

    def _close(self) -> None:
        if not self.started:
            self.failed = True
            return
        if not self._has_arguments:
            self._add_arguments("{}")
        self.done = True

    def _add_arguments(self, text: str) -> None:
        if self.started:
            self._out.append(CallArguments(text))
        else:
            self._pending += text


def _parsed_string(raw: str) -> str | None:
    """The string that this JSON is; None for other values and for what is no JSON."""
    try:
        value = json.loads(raw, strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None
