"""The formats that calls are written in: the grammar of each, its parser, and its calls' ids."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from router.tools.call_event import CallParser
from router.tools.hermes import CLOSE, OPEN, HermesParser
from router.tools.llama3 import TAG, Llama3Parser
from router.tools.mistral import MARKER, MistralParser
from text.structure.grammar_text import quoted

Literals = Callable[[str], str]
"""How a Lark grammar spells a marker: as text, or as the token that it is."""

FormatName = Literal["hermes", "llama3", "mistral"]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format.

    Lark rules: `opening` and `closing` are around all calls, `before` and `after` around each, and
    `separator` is between two; `name_key` and `arguments_key` are what an object begins with.
    """

    name: FormatName
    markers: tuple[str, ...]
    """What a parser must see, though it may be a special token."""
    parser: Callable[[Collection[str]], CallParser]
    opening: str = ""
    before: str = ""
    arguments_key: str = '"arguments"'
    after: str = ""
    separator: str = ""
    closing: str = ""
    id_length: int = 0
    """Of the plain ids that the format's templates insist on; 0: any id."""

    @property
    def trigger(self) -> str:
        """The marker behind which a call must follow; "" if calls have none."""
        return _marker(self.opening or self.before, self.markers)

    def new_id(self) -> str:
        if self.id_length:
            letters = string.ascii_letters + string.digits
            return "".join(secrets.choice(letters) for _ in range(self.id_length))
        return f"call_{secrets.token_hex(12)}"

    def calls(self, functions: Collection[str], *, parallel: bool, literal: Literals) -> str:
        """Rules of which `calls` derives one call, or several; the arguments of function i are the
        grammar `@arguments_i`."""
        more = f"({quoted(self.separator)} call)*" if parallel else ""
        return self._rules(
            f"calls: {_spelled(self.opening, self.markers, literal)} call {more} "
            f"{_optional(self.closing)}",
            f"call: {_spelled(self.before, self.markers, literal)}",
            functions,
            literal,
        )

    def triggered(self, functions: Collection[str], *, parallel: bool, literal: Literals) -> str:
        """Rules of which `calls` derives any text in which calls follow the trigger."""
        trigger = self.trigger
        spelled = literal(trigger)
        is_text = spelled == quoted(trigger)
        lead = f"lead[lazy]: TEXT {spelled}" if is_text else f"lead: TEXT {spelled}"
        rest = _optional((self.opening or self.before).removeprefix(trigger))
        if self.opening:
            more = f"({quoted(self.separator)} call)*" if parallel else ""
            group, call, often = (
                f"group: {rest} call {more} {_optional(self.closing)}",
                "call:",
                "?",
            )
        else:
            group, call, often = "group: call", f"call: {rest}", "*" if parallel else "?"
        rules = self._rules(
            f"calls: (lead group){often} TEXT\n{lead}\n{group}", call, functions, literal
        )
        return rules + "TEXT: /(.|\\n)*/\n"

    def _rules(self, calls: str, call: str, functions: Collection[str], literal: Literals) -> str:
        key = quoted('{"name": ')
        names = " | ".join(f"function_{i}" for i in range(len(functions)))
        end = _spelled("}" + self.after, self.markers, literal)
        lines = [calls, f"{call} {key} ({names}) {end}"]
        for i, name in enumerate(functions):
            begin = quoted(f"{quoted(name)}, {self.arguments_key}: ")
            lines.append(f"function_{i}: {begin} @arguments_{i}")
        return "\n".join(lines) + "\n"


HERMES = ToolFormat(
    name="hermes",
    markers=(OPEN, CLOSE),
    parser=lambda names: HermesParser(),
    before=f"{OPEN}\n",
    after=f"\n{CLOSE}",
    separator="\n",
)
LLAMA3 = ToolFormat(
    name="llama3",
    markers=(TAG,),
    parser=Llama3Parser,
    arguments_key='"parameters"',
    separator="; ",
)
MISTRAL = ToolFormat(
    name="mistral",
    markers=(MARKER,),
    parser=lambda names: MistralParser(),
    opening=f"{MARKER}[",
    separator=", ",
    closing="]",
    id_length=9,
)
FORMATS = {f.name: f for f in (HERMES, LLAMA3, MISTRAL)}


def format_of(template: str | None) -> ToolFormat:
    """The format that a chat template was written for; Hermes', which most models have seen, where
    it doesn't show."""
    text = template or ""
    if MARKER in text:
        return MISTRAL
    if OPEN in text:
        return HERMES
    if TAG in text or ("<|start_header_id|>" in text and "tools" in text):
        return LLAMA3
    return HERMES


def _optional(text: str) -> str:
    return quoted(text) if text else ""


def _marker(text: str, markers: Collection[str]) -> str:
    """The marker that the text begins with, or ""."""
    return next((m for m in markers if text.startswith(m)), "")


def _spelled(text: str, markers: Collection[str], literal: Literals) -> str:
    """The text with its markers spelled as the vocabulary has them."""
    pieces = re.split("(" + "|".join(map(re.escape, markers)) + ")", text)
    spelled = [literal(p) if p in markers else quoted(p) for p in pieces if p]
    return " ".join(spelled)
