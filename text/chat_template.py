"""Conversations to prompts, by the template that the model was trained with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jinja2

from core.clock import Clock, MonotonicClock
from core.errors import BadRequestError
from text.template_sandbox import Budget, TemplateEnvironment

Message = Mapping[str, object]

# Ends with a space: if that is gone after rendering, the template trims what it prints.
_MARK = "\ue000continue here\ue000 "
_RESERVED = {
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "bos_token",
    "eos_token",
}
# What a template does with values it didn't expect; all of it is about what the client sent.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)


class ChatTemplate:
    """A compiled chat template; safe to share between threads.

    `template` None is a model without one: it renders nothing and says so.
    """

    def __init__(
        self,
        template: str | None,
        bos_token: str = "",
        eos_token: str = "",
        *,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template: jinja2.Template | None = None
        self._problem = "this model has no chat template; use /v1/completions with a plain prompt"
        if template is not None:
            self._compile(template)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt of a conversation; `kwargs` are further variables of the template.

        `continue_final_message` leaves the last message open, so that the model goes on writing
        it, and overrides `add_generation_prompt`. Raises BadRequestError for what the template
        refuses or cannot render.
        """
        if not messages:
            raise BadRequestError("messages must not be empty", param="messages")
        kwargs = kwargs or {}
        reserved = sorted(_RESERVED & kwargs.keys())
        if reserved:
            raise BadRequestError(
                f"chat_template_kwargs must not set {', '.join(reserved)}",
                param="chat_template_kwargs",
            )
        variables = {
            **kwargs,
            **self._tokens,
            "tools": tools,
            "documents": None,
            "messages": _with_mark(messages) if continue_final_message else messages,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        text = self._run(variables)
        return _cut_at_mark(text) if continue_final_message else text

    def with_template(self, template: str) -> ChatTemplate:
        """Another template for the same model. Raises BadRequestError if it is malformed."""
        other = ChatTemplate(
            template, self._tokens["bos_token"], self._tokens["eos_token"], clock=self._clock
        )
        if other._template is None:
            raise BadRequestError(other._problem, param="chat_template")
        return other

    def _compile(self, template: str) -> None:
        try:
            self._template = TemplateEnvironment().from_string(template)
        except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError) as error:
            # Kept for whoever renders it: plain completions work all the same.
            self._problem = f"the chat template is malformed: {error}"

    def _run(self, variables: Mapping[str, object]) -> str:
        if self._template is None:
            raise BadRequestError(self._problem, param="messages")
        budget = Budget(self._clock)
        pieces = []
        try:
            for piece in self._template.generate({**variables, **budget.variables()}):
                budget.take_output(piece)
                pieces.append(piece)
        except _RENDER_ERRORS as error:
            raise BadRequestError(
                f"the chat template cannot render these messages: {error}", param="messages"
            ) from None
        return "".join(pieces)


def _with_mark(messages: Sequence[Message]) -> list[Message]:
    """The conversation with a mark at the end of the last message's text."""
    *before, last = messages
    content = last.get("content")
    if isinstance(content, str):
        return [*before, {**last, "content": content + _MARK}]
    if isinstance(content, list) and content and isinstance(content[-1], Mapping):
        part = content[-1]
        if isinstance(part.get("text"), str):
            marked = [*content[:-1], {**part, "text": part["text"] + _MARK}]
            return [*before, {**last, "content": marked}]
    raise BadRequestError("the final message has no text to continue", param="messages")


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_MARK.strip())
    if end < 0:
        raise BadRequestError(
            "the chat template does not print the final message, so it cannot be continued",
            param="messages",
        )
    return text[:end] if text.startswith(_MARK, end) else text[:end].rstrip()
