"""The functions that a client offers to the model, and which of them it wants called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from core.errors import BadRequestError

MAX_TOOLS = 128
"""OpenAI's limit."""
_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")


@dataclass(frozen=True, slots=True)
class Function:
    """One function. `parameters` is a JSON schema; None: it takes whatever object there is."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] | None = None
    strict: bool = False
    """Its calls keep to the schema, also where the model may choose whether to call."""

    def to_template(self) -> dict[str, object]:
        """As chat templates know it."""
        function: dict[str, object] = {"name": self.name, "description": self.description}
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Tooling:
    """What may be called. `allowed` are the functions that a call may name, of all that the model
    is told about."""

    functions: tuple[Function, ...]
    choice: Literal["auto", "required"]
    allowed: tuple[Function, ...]
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(function.name for function in self.allowed)

    def for_template(self) -> tuple[dict[str, object], ...]:
        """All functions, as chat templates know them."""
        return tuple(function.to_template() for function in self.functions)

    @property
    def constrains(self) -> bool:
        """Whether calls must follow a grammar."""
        return self.choice == "required" or any(f.strict for f in self.allowed)


def make_tooling(
    functions: Sequence[Function],
    *,
    choice: Literal["none", "auto", "required"] = "auto",
    only: Sequence[str] | None = None,
    parallel: bool = True,
) -> Tooling | None:
    """None where nothing may be called: the model is then not told of the functions either.

    `only` restricts calls to these names. Raises BadRequestError that names the field.
    """
    _check(functions)
    if not functions:
        if choice == "required" or only is not None:
            raise BadRequestError("tool_choice needs tools to choose from", param="tool_choice")
        return None
    if choice == "none":
        return None
    allowed = tuple(functions if only is None else [_named(functions, name) for name in only])
    if not allowed:
        raise BadRequestError("tool_choice allows no tool at all", param="tool_choice")
    return Tooling(tuple(functions), choice, allowed, parallel)


def _check(functions: Sequence[Function]) -> None:
    if len(functions) > MAX_TOOLS:
        raise BadRequestError(
            f"tools has {len(functions)} entries, more than {MAX_TOOLS}", param="tools"
        )
    for function in functions:
        if not _NAME.fullmatch(function.name):
            raise BadRequestError(
                f"the function name {function.name[:64]!r} is not 1 to 64 letters, digits, '_', "
                "'.', ':' or '-'",
                param="tools",
            )
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise BadRequestError("tools has two functions of one name", param="tools")


def _named(functions: Sequence[Function], name: str) -> Function:
    found = next((f for f in functions if f.name == name), None)
    if found is None:
        raise BadRequestError(
            f"tool_choice names '{name[:64]}', which is not among the tools", param="tool_choice"
        )
    return found
