"""Structure and tools in public gRPC messages <-> what the door understands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from core.errors import BadRequestError
from protos import inference_pb2 as pb
from router.inner_json import parsed_json
from router.message.reader import CallDelta
from router.structure.output_format import OutputFormat, any_object, choice_format
from router.tools.tooling import Function, Tooling, make_tooling

_FORMAT = "output_format"


def output_format_of(request: pb.CompleteRequest) -> OutputFormat | None:
    """What the answer must be. Raises BadRequestError for a format without a kind."""
    if not request.HasField("output_format"):
        return None
    wanted = request.output_format
    match wanted.WhichOneof("kind"):
        case "json_schema":
            return OutputFormat("json", wanted.json_schema, _FORMAT)
        case "json_object":
            return any_object(_FORMAT) if wanted.json_object else None
        case "regex":
            return OutputFormat("regex", wanted.regex, _FORMAT)
        case "choice":
            return choice_format(wanted.choice.texts, _FORMAT)
        case "grammar":
            return OutputFormat("grammar", wanted.grammar, _FORMAT)
        case _:
            raise BadRequestError("output_format says nothing", param=_FORMAT)


def tooling_of(request: pb.CompleteRequest) -> Tooling | None:
    """What may be called. Raises BadRequestError that names the field."""
    if not request.HasField("chat"):
        if request.tools:
            raise BadRequestError("tools need chat", param="tools")
        return None
    functions = [
        Function(tool.name, tool.description, _schema(tool), strict=tool.strict)
        for tool in request.tools
    ]
    parallel = request.parallel_tool_calls if request.HasField("parallel_tool_calls") else True
    only = list(request.tool_choice.only) or None
    match request.tool_choice.mode:
        case "" | "auto":
            return make_tooling(functions, only=only, parallel=parallel)
        case "none":
            return make_tooling(functions, choice="none")
        case "required":
            return make_tooling(functions, choice="required", only=only, parallel=parallel)
        case other:
            raise BadRequestError(
                f"tool_choice.mode is '{other[:32]}', not none, auto or required",
                param="tool_choice",
            )


def call_to_template(call: pb.ToolCall) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def calls_to_wire(calls: Iterable[CallDelta]) -> list[pb.ToolCallDelta]:
    return [
        pb.ToolCallDelta(index=c.index, id=c.id, name=c.name, arguments=c.arguments) for c in calls
    ]


def _schema(tool: pb.Tool) -> Mapping[str, object] | None:
    if not tool.parameters:
        return None
    try:
        schema = parsed_json(tool.parameters)
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise BadRequestError(
            f"tools: the parameters of '{tool.name[:64]}' are no JSON object", param="tools"
        )
    return schema
