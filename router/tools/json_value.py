"""Where a JSON value ends, character by character."""

from __future__ import annotations

SPACE = " \t\r\n"
_SCALAR = frozenset("+-.0123456789eEtrufalsn")


class StringScanner:
    """One JSON string, after its opening quote."""

    def __init__(self) -> None:
        self.raw = '"'
        self._escaped = False

    def push(self, character: str) -> bool:
        """Whether the string ends with this character."""
        self.raw += character
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        else:
            return character == '"'
        return False


class ValueScanner:
    """One JSON value. Checks brackets and quotes only: whoever wants the value parses it."""

    def __init__(self, first: str) -> None:
        """`first` is the value's first character."""
        self.is_composite = first in "{["
        self.is_string = first == '"'
        self.is_value = self.is_composite or self.is_string or first in _SCALAR
        """Whether a value can begin so."""
        self._depth = 1
        self._in_string = self.is_string
        self._escaped = False

    def ends_before(self, character: str) -> bool:
        """Whether a number or word ended with the character before this one."""
        return not (self.is_composite or self.is_string) and character not in _SCALAR

    def ends_with(self, character: str) -> bool:
        """Takes one more character; whether the value is complete with it."""
        if self._in_string:
            self._push_in_string(character)
            return not self._in_string and self.is_string
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        return self.is_composite and self._depth == 0

    def _push_in_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
