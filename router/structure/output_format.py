"""What the text of an answer must be, as the client said it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from core.errors import BadRequestError
from router.inner_json import parsed_json
from text.structure.compiler import MAX_GRAMMAR_CHARACTERS
from text.structure.grammar_text import Part, choice_part, json_part, lark_part, regex_part

MAX_CHOICES_TO_CHOOSE = 16_384


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """One wish. `source` is a JSON schema, a regular expression, a JSON list of choices, or a
    grammar; `param` is the field of the request that faults are reported on."""

    kind: Literal["json", "regex", "choice", "grammar"]
    source: str
    param: str

    def __post_init__(self) -> None:
        """Raises BadRequestError for what is too long to be looked at."""
        if len(self.source) > MAX_GRAMMAR_CHARACTERS:
            raise BadRequestError(
                f"{self.param}: it has {len(self.source)} characters, more than "
                f"{MAX_GRAMMAR_CHARACTERS}",
                param=self.param,
            )

    def part(self) -> Part:
        """The grammar. Raises BadRequestError that names the field."""
        try:
            return self._part()
        except BadRequestError as error:
            raise BadRequestError(f"{self.param}: {error.message}", param=self.param) from None
        except UnicodeEncodeError:
            message = f"{self.param}: it holds unpaired surrogates: not Unicode"
            raise BadRequestError(message, param=self.param) from None

    def _part(self) -> Part:
        match self.kind:
            case "json":
                return json_part(_parsed(self.source))
            case "regex":
                return regex_part(self.source)
            case "choice":
                return choice_part(_choices(self.source))
            case "grammar":
                return lark_part(self.source)


def json_format(schema: object, param: str) -> OutputFormat:
    """`schema` is what JSON has been parsed to."""
    return OutputFormat("json", json.dumps(schema, ensure_ascii=False), param)


def any_object(param: str) -> OutputFormat:
    """Some JSON object."""
    return json_format({"type": "object"}, param)


def choice_format(choices: Sequence[str], param: str) -> OutputFormat:
    return OutputFormat("choice", json.dumps(list(choices), ensure_ascii=False), param)


def _parsed(schema: str) -> object:
    try:
        return parsed_json(schema)
    except ValueError as error:
        raise BadRequestError(f"the schema is not valid JSON: {error}") from None


def _choices(source: str) -> list[str]:
    choices = _parsed(source)
    if not isinstance(choices, list) or not all(isinstance(c, str) for c in choices):
        raise BadRequestError("the choices must be a list of strings")
    if len(choices) > MAX_CHOICES_TO_CHOOSE:
        raise BadRequestError(
            f"there are {len(choices)} choices, more than {MAX_CHOICES_TO_CHOOSE}"
        )
    return choices
