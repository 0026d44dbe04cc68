"""A conversation in a body, and the fields that say how it becomes a text: chats and /tokenize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from core.errors import BadRequestError
from router.cache_control import Breakpoint
from router.http.cache_control import CacheControl
from router.http.strict import JsonObject, Listed, Strict
from router.http.tool_fields import ToolCall, ToolFields
from router.request_spec import ChatPrompt, chat_message, exclusive_endings
from router.tools.tooling import Tooling


class TextPart(Strict):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


class ChatMessage(Strict):
    """What an answer brought may be sent back as it is: its nulls say nothing."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Listed[TextPart] | None = None
    name: str | None = None
    tool_calls: Listed[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    cache_control: CacheControl | None = None

    def to_template(self, index: int) -> dict[str, object]:
        """As templates know it; parts become lines of one text. `index` is its place."""
        content = self.content
        if content is None and not self.tool_calls and not self.refusal:
            param = f"messages.{index}.content"
            raise BadRequestError(
                f"'{param}' is required", param=param, code="missing_required_parameter"
            )
        parts = [content] if isinstance(content, str) else [part.text for part in content or ()]
        return chat_message(
            self.role,
            "\n".join(parts) or self.refusal or "",
            self.name,
            tool_calls=[call.to_template() for call in self.tool_calls or ()],
            tool_call_id=self.tool_call_id,
            thoughts=self.reasoning_content,
        )

    def breakpoints(self, index: int) -> list[Breakpoint]:
        """Where the text that `to_template` makes of it is marked, in order."""
        parts = self.content if isinstance(self.content, list) else []
        found: list[Breakpoint] = []
        end = -1
        for part in parts:
            end += 1 + len(part.text)
            if part.cache_control is not None:
                reached = None if part is parts[-1] else end
                found.append(Breakpoint(index, reached, part.cache_control.ttl_s))
        if self.cache_control is not None:
            found.append(Breakpoint(index, None, self.cache_control.ttl_s))
        return found


class TemplateFields(Strict):
    """None, given or not, means the default of each."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    tools: Listed[ToolFields] | None = None

    def chat_prompt(self, messages: Sequence[ChatMessage], tooling: Tooling | None) -> ChatPrompt:
        """Raises BadRequestError."""
        if self.continue_final_message and self.add_generation_prompt:
            raise exclusive_endings()
        return ChatPrompt(
            messages=tuple(message.to_template(i) for i, message in enumerate(messages)),
            tools=() if tooling is None else tooling.for_template(),
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
            template=self.chat_template,
            template_kwargs=self.chat_template_kwargs or {},
            breakpoints=tuple(
                place
                for index, message in enumerate(messages)
                for place in message.breakpoints(index)
            ),
        )
