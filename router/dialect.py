"""How the served model writes calls and thoughts, and is told of tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.config import ModelConfig
from core.errors import BadRequestError
from router.tools.conversation import for_template, without_tool_support
from router.tools.formats import FORMATS, HERMES, ToolFormat, format_of
from text.structure.grammar_text import quoted
from text.tokenizer import Tokenizer

THINK, END_THINK = "<think>", "</think>"
_TAIL_TOKENS = 32
"""Tokens at a prompt's end that show whether it opens, or closes, the model's thoughts."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """`tools` None: calls are not supported; `thinks`: answers may begin with thoughts."""

    tools: ToolFormat | None = HERMES
    template_knows_tools: bool = True
    thinks: bool = False
    template_knows_system: bool = True

    def messages(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]]
    ) -> tuple[Sequence[Mapping[str, object]], Sequence[Mapping[str, object]] | None]:
        """Messages and tools as the chat template takes them."""
        if not tools and not any(_is_about_tools(message) for message in messages):
            return messages, None
        if self.tools is None:
            raise BadRequestError("this model is served without tools", param="tools")
        if not self.template_knows_tools:
            told = without_tool_support(messages, tools, system=self.template_knows_system)
            return told, None
        return for_template(messages, self.tools), tools or None


def make_dialect(config: ModelConfig, template: str | None) -> Dialect:
    """As the settings say, or as the model's chat template shows."""
    if config.tool_parser == "auto":
        tools: ToolFormat | None = format_of(template)
    else:
        tools = None if config.tool_parser == "none" else FORMATS[config.tool_parser]
    if config.reasoning_parser == "auto":
        thinks = THINK in (template or "") or END_THINK in (template or "")
    else:
        thinks = config.reasoning_parser == "think"
    known = (template or "").lower()
    refuses_system = "system role not supported" in known or "only user and assistant" in known
    return Dialect(tools, "tools" in known, thinks, not refuses_system)


def marker_literal(tokenizer: Tokenizer, marker: str) -> str:
    """How a grammar spells a marker: its token where that is a special one, whose text no grammar
    matches; else its text."""
    token_id = tokenizer.token_id(marker)
    if token_id is not None and token_id in tokenizer.special_token_ids:
        return f"<[{token_id}]>"
    return quoted(marker)


def markers_kept(dialect: Dialect, tokenizer: Tokenizer, *, calls: bool) -> frozenset[int]:
    """Special tokens whose text a reader of the answer has to see."""
    markers = [THINK, END_THINK] if dialect.thinks else []
    if calls and dialect.tools is not None:
        markers += [*dialect.tools.markers, "[ARGS]", "[CALL_ID]"]
    ids = (tokenizer.token_id(marker) for marker in markers)
    return frozenset(i for i in ids if i is not None) & tokenizer.special_token_ids


def prompt_tail(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The end of a prompt's text."""
    return tokenizer.decode(token_ids[-_TAIL_TOKENS:], skip_special_tokens=False).rstrip()


def _is_about_tools(message: Mapping[str, object]) -> bool:
    return message.get("role") == "tool" or bool(message.get("tool_calls"))
