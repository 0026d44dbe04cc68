"""The canonical text of grammars: one JSON object, the same for the same wish on every machine.

A grammar is a list of parts that name each other; the first is what the answer follows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import llguidance
from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from core.errors import BadRequestError

Part = Mapping[str, object]
"""One grammar of the list: `json_schema` or `lark_grammar`, and perhaps a `name`."""

MAX_MULTIPLE_OF = 10_000
"""Largest `multipleOf`, counted in its last decimal place: each remainder is a state."""
MAX_SCHEMA_DEPTH = 100
_SPACE = " |\\n {0,32}|\\n\\t{0,16}"
"""Between JSON's tokens: one space, or a line's end with an indent. Where any space is allowed,
small models write it without end."""


def grammar_text(parts: Sequence[Part]) -> str:
    """The canonical text of a list of parts."""
    return json.dumps({"grammars": list(parts)}, ensure_ascii=False, separators=(",", ":"))


def json_part(schema: object) -> Part:
    """JSON that a schema allows. Raises BadRequestError for what no compiler should be given."""
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise BadRequestError("the schema must be a JSON object")
    _check_schema(schema, 0)
    return {"json_schema": {**schema, "x-guidance": {"whitespace_pattern": _SPACE}}}


def regex_part(regex: str) -> Part:
    """Text that a regular expression matches as a whole."""
    if not regex:
        raise BadRequestError("the regular expression is empty")
    return {"lark_grammar": f"start: /{llguidance.regex_to_lark(regex)}/"}


def choice_part(choices: Sequence[str]) -> Part:
    """One of some texts."""
    if not choices:
        raise BadRequestError("there is nothing to choose from")
    if not all(choices):
        raise BadRequestError("a choice must not be empty")
    return {"lark_grammar": "start: " + " | ".join(quoted(choice) for choice in choices)}


def lark_part(grammar: str) -> Part:
    """What a grammar in Lark's syntax derives from `start`, or one in GBNF from `root`.

    Raises BadRequestError for a grammar that is neither.
    """
    if not grammar.strip():
        raise BadRequestError("the grammar is empty")
    try:
        return {"lark_grammar": any_to_lark(grammar)}
    except (GbnfToLarkError, ValueError, RecursionError) as error:
        raise BadRequestError(f"neither Lark nor GBNF: {error}") from None


def quoted(text: str) -> str:
    """A literal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def _check_schema(value: object, depth: int) -> None:
    if depth > MAX_SCHEMA_DEPTH:
        raise BadRequestError(f"the schema is nested more than {MAX_SCHEMA_DEPTH} deep")
    if isinstance(value, Mapping):
        _check_multiple_of(value.get("multipleOf"))
        for inner in value.values():
            _check_schema(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_schema(inner, depth + 1)


def _check_multiple_of(step: object) -> None:
    if isinstance(step, bool) or not isinstance(step, int | float):
        return
    digits = f"{step:.12f}".rstrip("0").replace(".", "")
    if len(digits) > 13 or int(digits.lstrip("-") or "0") > MAX_MULTIPLE_OF:
        raise BadRequestError(f"multipleOf {step:g} has too many remainders to be followed")
