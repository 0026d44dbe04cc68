"""Messages with thoughts and calls in OpenAI's shape, as deltas and whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.message.reader import CallDelta, MessageDelta


def delta_of(message: MessageDelta) -> dict[str, object]:
    """The `delta` object of a chunk; empty where nothing was gained."""
    delta: dict[str, object] = {}
    if message.thoughts:
        delta["reasoning_content"] = message.thoughts
    if message.content:
        delta["content"] = message.content
    if message.calls:
        delta["tool_calls"] = [_call_delta(call) for call in _merged(message.calls)]
    return delta


@dataclass(slots=True)
class WholeMessage:
    """One message while its deltas are collected."""

    content: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[CallDelta] = field(default_factory=list)

    def add(self, message: MessageDelta) -> None:
        self.content.append(message.content)
        self.thoughts.append(message.thoughts)
        self.calls += message.calls

    def to_json(self) -> dict[str, object]:
        """Content is null where there are only calls."""
        calls = _by_index(self.calls)
        content = "".join(self.content)
        message: dict[str, object] = {
            "role": "assistant",
            "content": content if content or not calls else None,
            "refusal": None,
        }
        if thoughts := "".join(self.thoughts):
            message["reasoning_content"] = thoughts
        if calls:
            message["tool_calls"] = [_whole_call(call) for call in calls]
        return message


def _merged(calls: tuple[CallDelta, ...]) -> list[CallDelta]:
    """A call's beginning stays apart from its arguments, as clients expect it."""
    merged: list[CallDelta] = []
    for call in calls:
        last = merged[-1] if merged else None
        if last is not None and not last.name and not call.name and last.index == call.index:
            merged[-1] = CallDelta(call.index, arguments=last.arguments + call.arguments)
        else:
            merged.append(call)
    return merged


def _call_delta(call: CallDelta) -> dict[str, object]:
    if not call.name:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _by_index(deltas: list[CallDelta]) -> list[CallDelta]:
    calls: dict[int, CallDelta] = {}
    for delta in deltas:
        before = calls.get(delta.index, CallDelta(delta.index))
        calls[delta.index] = CallDelta(
            delta.index,
            before.id or delta.id,
            before.name or delta.name,
            before.arguments + delta.arguments,
        )
    return [calls[index] for index in sorted(calls)]


def _whole_call(call: CallDelta) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
