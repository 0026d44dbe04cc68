"""A conversation with tools as a chat template wants it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from core.errors import BadRequestError
from router.inner_json import parsed_json
from router.tools.formats import ToolFormat
from router.tools.hermes import CLOSE, OPEN

Message = Mapping[str, object]


def for_template(messages: Sequence[Message], tool_format: ToolFormat) -> list[Message]:
    """The same messages with each call's arguments as an object, which templates print themselves.

    Raises BadRequestError for arguments that are no JSON object.
    """
    return [_with_objects(message, tool_format) for message in messages]


def without_tool_support(
    messages: Sequence[Message], tools: Sequence[Mapping[str, object]], *, system: bool = True
) -> list[Message]:
    """The same conversation for a template that knows nothing of tools: they are described in the
    system message, calls and their results are text, in Hermes' form.

    Not `system`: the template knows no such message either; the first one tells of tools.
    """
    told = [_as_text(message) for message in messages]
    if not tools:
        return told
    described = _description(tools)
    if told and told[0].get("role") == "system":
        first = {**told[0], "content": f"{told[0].get('content', '')}\n\n{described}"}
        return [first, *told[1:]]
    if told and not system:
        first = {**told[0], "content": f"{described}\n\n{told[0].get('content', '')}"}
        return [first, *told[1:]]
    return [{"role": "system", "content": described}, *told]


def _with_objects(message: Message, tool_format: ToolFormat) -> Message:
    calls = message.get("tool_calls")
    changed = dict(message)
    if isinstance(calls, list):
        changed["tool_calls"] = [_call_with_object(call, tool_format) for call in calls]
    if tool_format.id_length and isinstance(answered := message.get("tool_call_id"), str):
        changed["tool_call_id"] = _plain_id(answered, tool_format.id_length)
    return changed


def _call_with_object(call: Mapping[str, object], tool_format: ToolFormat) -> dict[str, object]:
    function = call["function"]
    assert isinstance(function, Mapping)
    arguments = _object(str(function["arguments"]))
    changed = {**call, "function": {**function, "arguments": arguments}}
    if tool_format.id_length:
        changed["id"] = _plain_id(str(call["id"]), tool_format.id_length)
    return changed


def _plain_id(call_id: str, length: int) -> str:
    """Letters and digits of this length: the id itself, or else one that follows from it."""
    if len(call_id) == length and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.blake2b(call_id.encode("utf-8", "replace")).hexdigest()[:length]


def _object(arguments: str) -> dict[str, object]:
    try:
        parsed = parsed_json(arguments or "{}")
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise BadRequestError(
            f"a tool call's arguments are no JSON object: {arguments[:64]}", param="messages"
        )
    return parsed


def _as_text(message: Message) -> Message:
    if message.get("role") == "tool":
        text = f"<tool_response>\n{message.get('content', '')}\n</tool_response>"
        return {"role": "user", "content": text}
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    texts = [str(message.get("content") or "")]
    for call in calls:
        function = call["function"]
        body = {"name": function["name"], "arguments": _object(str(function["arguments"]))}
        texts.append(f"{OPEN}\n{json.dumps(body, ensure_ascii=False)}\n{CLOSE}")
    return {"role": "assistant", "content": "\n".join(text for text in texts if text)}


def _description(tools: Sequence[Mapping[str, object]]) -> str:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = f'{OPEN}\n{{"name": "function", "arguments": {{"key": "value"}}}}\n{CLOSE}'
    return (
        f"You may call functions. They are, one JSON object a line:\n{lines}\n"
        f"To call one, write its name and arguments as a JSON object between tags:\n{example}"
    )
