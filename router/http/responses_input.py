"""Input items of /v1/responses, and how they become the messages of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from router.http.strict import Listed, Strict
from router.request_spec import MAX_MESSAGES

Status = Literal["in_progress", "completed", "incomplete"]
ChatMessages = list[dict[str, Any]]


class _Item(Strict):
    """What a former answer held may be sent back as it came."""

    id: str | None = None
    status: Status | None = None


class ItemText(Strict):
    """Text of a message. The others are what an answer of ours had beside it."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class MessageItem(_Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Listed[ItemText]
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(_Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionOutputItem(_Item):
    type: Literal["function_call_output"]
    call_id: str
    output: str | Listed[ItemText]


class SummaryPart(Strict):
    type: Literal["summary_text"]
    text: str


class ReasoningPart(Strict):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(_Item):
    type: Literal["reasoning"]
    summary: Listed[SummaryPart]
    content: Listed[ReasoningPart] | None = None
    encrypted_content: None = None


def _type_of(item: object) -> object:
    """Messages need not say that they are."""
    return item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_type_of),
]

InputItems = Annotated[Listed[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]


def _text_or_items(value: object) -> str:
    """Told apart first, so that a fault of an item is not taken for a wish for text."""
    return "text" if isinstance(value, str) else "items"


Input = Annotated[
    Annotated[str, Tag("text")] | Annotated[InputItems, Tag("items")],
    Discriminator(_text_or_items),
]


class Conversation:
    """Items as the messages of a chat, and which item each came from.

    What the model said in one turn (reasoning, text, calls) is one message of a chat.
    """

    def __init__(self, instructions: str | None, given: str | Sequence[InputItem]) -> None:
        self.messages: ChatMessages = []
        self._origins: list[int | None] = []
        self._turn: dict[str, Any] | None = None
        if instructions is not None:
            self._add(None, {"role": "system", "content": instructions})
        if isinstance(given, str):
            self._add(None, {"role": "user", "content": given})
        else:
            for index, item in enumerate(given):
                self._take(index, item)
        for message in self.messages:
            if not message.keys() & {"content", "tool_calls"}:
                message["content"] = ""  # a turn that was broken off while it reasoned

    def place(self, param: str) -> str:
        """`input.2.content` for a fault that the chat found in `messages.3.content`."""
        _, _, rest = param.partition(".")
        index, _, field = rest.partition(".")
        if not index.isdigit() or int(index) >= len(self._origins):
            return "input"
        origin = self._origins[int(index)]
        if origin is None:
            return "input"
        return f"input.{origin}.{field}" if field == "content" else f"input.{origin}"

    def _take(self, index: int, item: InputItem) -> None:
        match item:
            case MessageItem(role="assistant"):
                turn = self._begin_turn(index, without=("content", "tool_calls"))
                turn["content"] = _text(item.content)
            case MessageItem():
                self._add(index, {"role": item.role, "content": _text(item.content)})
            case FunctionCallItem():
                turn = self._begin_turn(index, without=())
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                turn.setdefault("tool_calls", []).append(call)
            case FunctionOutputItem():
                text = _text(item.output)
                message = {"role": "tool", "tool_call_id": item.call_id, "content": text}
                self._add(index, message)
            case ReasoningItem():
                without = ("content", "tool_calls", "reasoning_content")
                turn = self._begin_turn(index, without=without)
                parts: Sequence[SummaryPart | ReasoningPart] = item.content or item.summary
                turn["reasoning_content"] = "\n".join(part.text for part in parts)

    def _begin_turn(self, index: int, *, without: Sequence[str]) -> dict[str, Any]:
        """The model's message that goes on; a new one if it has any of `without` already."""
        if self._turn is None or any(key in self._turn for key in without):
            turn: dict[str, Any] = {"role": "assistant"}
            self._add(index, turn)
            self._turn = turn
        return self._turn

    def _add(self, index: int | None, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._origins.append(index)
        self._turn = None


def _text(content: str | Sequence[ItemText]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
