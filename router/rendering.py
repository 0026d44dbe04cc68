"""How a conversation is rendered where the client says more than its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.errors import BadRequestError

RESERVED = frozenset(
    {
        "self",
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
    }
)
"""Variables of a template that have fields of their own, or are the model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """`kwargs` are further variables of the template."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, object]] | None = None
    kwargs: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        """Raises BadRequestError."""
        if self.continue_final_message and self.add_generation_prompt:
            raise BadRequestError(
                "continue_final_message goes on with the last message, so it excludes "
                "add_generation_prompt: set that to false",
                param="continue_final_message",
            )
        reserved = sorted(RESERVED & set(self.kwargs or ()))
        if reserved:
            raise BadRequestError(
                f"chat_template_kwargs must not set {', '.join(reserved)}",
                param="chat_template_kwargs",
            )
