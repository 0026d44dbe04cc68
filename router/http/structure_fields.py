"""The fields by which clients ask for structure, OpenAI's and vLLM's: together one wish."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from core.errors import BadRequestError
from router.http.strict import JsonObject, Listed, Strict
from router.structure.output_format import (
    OutputFormat,
    any_object,
    choice_format,
    json_format,
)


class JsonSchema(Strict):
    """`strict` or not, the schema is followed: there is no weaker way here."""

    name: str
    description: str | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def wish(self) -> OutputFormat | None:
        if self.type == "text":
            return None
        if self.type == "json_object":
            return any_object("response_format")
        if self.json_schema is None:
            raise BadRequestError(
                "response_format of the type json_schema needs json_schema", param="response_format"
            )
        schema = self.json_schema.schema_
        return json_format({"type": "object"} if schema is None else schema, "response_format")


class StructuredOutputs(Strict):
    """vLLM's `structured_outputs`."""

    json_: JsonObject | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Listed[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def wishes(self) -> list[OutputFormat]:
        return _wishes(
            json=("structured_outputs", self.json_),
            regex=("structured_outputs", self.regex),
            choice=("structured_outputs", self.choice),
            grammar=("structured_outputs", self.grammar),
        ) + ([any_object("structured_outputs")] if self.json_object else [])


class StructureFields(Strict):
    """The fields of a body that are about structure."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | str | None = None
    guided_regex: str | None = None
    guided_choice: Listed[str] | None = None
    guided_grammar: str | None = None

    def output_format(self) -> OutputFormat | None:
        """What the answer must be. Raises BadRequestError for two wishes at once."""
        wishes = _wishes(
            json=("guided_json", self.guided_json),
            regex=("guided_regex", self.guided_regex),
            choice=("guided_choice", self.guided_choice),
            grammar=("guided_grammar", self.guided_grammar),
        )
        if self.structured_outputs is not None:
            wishes += self.structured_outputs.wishes()
        if self.response_format is not None and (wish := self.response_format.wish()):
            wishes.append(wish)
        if len(wishes) > 1:
            raise BadRequestError(
                f"{wishes[0].param} and {wishes[1].param} ask for more than one structure",
                param=wishes[1].param,
            )
        return wishes[0] if wishes else None


def _wishes(
    *,
    json: tuple[str, dict[str, Any] | str | None],
    regex: tuple[str, str | None],
    choice: tuple[str, list[str] | None],
    grammar: tuple[str, str | None],
) -> list[OutputFormat]:
    """Each is a field's name with its value."""
    wishes: list[OutputFormat] = []
    param, schema = json
    if isinstance(schema, str):
        wishes.append(OutputFormat("json", schema, param))
    elif schema is not None:
        wishes.append(json_format(schema, param))
    if regex[1] is not None:
        wishes.append(OutputFormat("regex", regex[1], regex[0]))
    if choice[1] is not None:
        wishes.append(choice_format(choice[1], choice[0]))
    if grammar[1] is not None:
        wishes.append(OutputFormat("grammar", grammar[1], grammar[0]))
    return wishes
