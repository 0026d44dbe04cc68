"""The fields by which clients offer tools, and what messages say of calls."""

from __future__ import annotations

from typing import Literal

from router.http.strict import JsonObject, Listed, Strict
from router.tools.tooling import Function, Tooling, make_tooling


class FunctionFields(Strict):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ToolFields(Strict):
    """One of `tools`; only functions are known."""

    type: Literal["function"]
    function: FunctionFields

    def to_function(self) -> Function:
        given = self.function
        return Function(
            given.name, given.description or "", given.parameters, strict=bool(given.strict)
        )


class _Name(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: _Name


class _Allowed(Strict):
    mode: Literal["auto", "required"]
    tools: Listed[NamedTool]


class AllowedTools(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: _Allowed


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedTools


def tooling_of(
    tools: list[ToolFields] | None, choice: ToolChoice | None, parallel: bool | None
) -> Tooling | None:
    """What may be called. Raises BadRequestError that names the field."""
    functions = [tool.to_function() for tool in tools or ()]
    several = parallel is not False
    if isinstance(choice, NamedTool):
        only = [choice.function.name]
        return make_tooling(functions, choice="required", only=only, parallel=False)
    if isinstance(choice, AllowedTools):
        allowed = choice.allowed_tools
        only = [tool.function.name for tool in allowed.tools]
        return make_tooling(functions, choice=allowed.mode, only=only, parallel=several)
    return make_tooling(functions, choice=choice or "auto", parallel=several)


class _CalledFunction(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    """A call in an assistant's message."""

    id: str
    type: Literal["function"] = "function"
    function: _CalledFunction
    index: int | None = None
    """Some clients send streamed deltas back as they came."""

    def to_template(self) -> dict[str, object]:
        return {"id": self.id, "type": "function", "function": self.function.model_dump()}
