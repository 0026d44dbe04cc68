"""The canonical text of grammars: one JSON object, the same for the same wish on every machine.

A grammar is a list of parts that name each other; the first is what the answer follows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark

from core.errors import BadRequestError

Part = Mapping[str, object]
"""One grammar of the list: `json_schema` or `lark_grammar`, and perhaps a `name`."""

MAX_REMAINDERS = 20_000
"""Of all `multipleOf` in a schema, in units of their last decimal place: 0.1 s to compile."""
MAX_FLOAT = 1e300
"""What is larger is for the compiler to refuse."""
MAX_SCHEMA_DEPTH = 100
MAX_REFERRED_DEPTH = 1_000
"""References of a schema times how deep it is nested: the compiler follows them on its stack, and
where that ends, so does the process (at 3,000 to 5,000, in a thread of ours)."""
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
MAX_RULES = 1_000
"""Of a Lark grammar, for the same reason."""
MAX_GBNF_CHARACTERS = 32 * 1024
MAX_GBNF_RULES = 500
"""Of a grammar in GBNF: its converter takes time by the square of its rules, some seconds then."""
_LARK = re.compile(r"(?m)^[^\S\n]*(?:%llguidance\b|start\s*:)")
"""What begins a line of a Lark grammar only. The library's own expression for it takes time by the
square of a run of line ends, and holds Python's lock for all of it."""
_RULE = re.compile(r"(?m)^[^\S\n]*[?!]?[^\W\d][^\n:]*:")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
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
    _check_schema(schema)
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
    unescaped = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), grammar)
    for keyword in ("multipleOf", *_REFERENCES):
        if keyword in unescaped:
            raise BadRequestError(f"{keyword} is only supported in a schema by itself")
    if _LARK.search(grammar):
        if sum(1 for _ in _RULE.finditer(grammar)) > MAX_RULES:
            raise BadRequestError(f"it has more than {MAX_RULES} rules")
        return {"lark_grammar": grammar}
    if len(grammar) > MAX_GBNF_CHARACTERS or grammar.count("::=") > MAX_GBNF_RULES:
        raise BadRequestError(
            f"a grammar in GBNF may have {MAX_GBNF_CHARACTERS} characters and {MAX_GBNF_RULES} "
            "rules; one in Lark's syntax has a rule named start"
        )
    try:
        return {"lark_grammar": gbnf_to_lark(grammar)}
    except Exception as error:  # noqa: BLE001 - the converter raises bare ones for what it can't read
        raise BadRequestError(f"neither Lark nor GBNF: {error}") from None


def quoted(text: str) -> str:
    """A literal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def _check_schema(schema: object) -> None:
    """Its depth, also through references, and what `multipleOf` adds up to: each remainder is a
    state that costs no fuel."""
    steps = [Fraction(str(step)) for step in _steps(schema, 0) if step > 0]
    scale = math.lcm(*(step.denominator for step in steps))
    states = [int(step * scale) for step in steps]
    if sum(states) > MAX_REMAINDERS or math.lcm(*states) > MAX_REMAINDERS:
        raise BadRequestError(
            f"multipleOf leaves more than {MAX_REMAINDERS} remainders to be followed"
        )
    _check_references(schema)


def _check_references(schema: object) -> None:
    """No longer way leads through a schema than past all its references, each as deep as it is."""
    references, depth, level = set[object](), 0, [schema]
    while level:
        depth += 1
        inside: list[object] = []
        for value in level:
            if isinstance(value, Mapping):
                references.update(str(value[key]) for key in _REFERENCES if key in value)
                inside += value.values()
            elif isinstance(value, list):
                inside += value
        level = [value for value in inside if isinstance(value, Mapping | list)]
    if len(references) * depth > MAX_REFERRED_DEPTH:
        raise BadRequestError(
            f"it has {len(references)} references and is nested {depth} deep, together more than "
            f"{MAX_REFERRED_DEPTH} levels"
        )


def _steps(value: object, depth: int) -> Iterator[float]:
    """Every `multipleOf`, wherever it may be meant as one."""
    if depth > MAX_SCHEMA_DEPTH:
        raise BadRequestError(f"the schema is nested more than {MAX_SCHEMA_DEPTH} deep")
    if isinstance(value, Mapping):
        step = value.get("multipleOf")
        if isinstance(step, int | float) and not isinstance(step, bool) and abs(step) < MAX_FLOAT:
            yield step
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _steps(inner, depth + 1)
