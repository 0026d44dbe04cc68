"""The one grammar of an answer, out of all that a request asks of it.

thoughts?  ( what response_format says | calls | text with calls in it )
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from core.errors import BadRequestError
from router.dialect import END_THINK, THINK, Dialect, marker_literal
from router.message.thoughts import Thinking
from router.structure.output_format import OutputFormat
from router.tools.formats import ToolFormat
from router.tools.tooling import Function, Tooling
from text.structure.grammar_text import Part, grammar_text, json_part, quoted
from text.tokenizer import Tokenizer

_ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Wish:
    """What the request asks of its answers' text."""

    output_format: OutputFormat | None
    tooling: Tooling | None

    @property
    def param(self) -> str:
        """The field that faults of the whole are reported on."""
        if self.output_format is not None:
            return self.output_format.param
        return "tools"


def needs_grammar(wish: Wish) -> bool:
    """Whether anything is to be followed."""
    return wish.output_format is not None or (wish.tooling is not None and wish.tooling.constrains)


def answer_grammar(wish: Wish, dialect: Dialect, tokenizer: Tokenizer, thinking: Thinking) -> str:
    """The canonical text; `thinking` is how the answer begins.

    Raises BadRequestError that names the field.
    """
    parts, body, rules = _body(wish, dialect, tokenizer)
    thoughts = _thoughts(tokenizer, thinking)
    if thoughts is None and not rules:
        return grammar_text(parts)  # the format by itself
    first, more = thoughts or ("", "")
    lark = f"start: {first} {body}\n{rules}{more}"
    if not rules:
        parts = [{"name": "body", **parts[0]}]
    return grammar_text([{"lark_grammar": lark}, *parts])


def _body(wish: Wish, dialect: Dialect, tokenizer: Tokenizer) -> tuple[list[Part], str, str]:
    """Further parts, what `start` derives, and its rules."""
    if wish.tooling is None:
        assert wish.output_format is not None
        return [wish.output_format.part()], "@body", ""
    tool_format = dialect.tools
    if tool_format is None:
        raise BadRequestError("this model is served without tools", param="tools")
    return _with_tools(wish, wish.tooling, tool_format, tokenizer)


def _with_tools(
    wish: Wish, tooling: Tooling, tool_format: ToolFormat, tokenizer: Tokenizer
) -> tuple[list[Part], str, str]:
    required = tooling.choice == "required"
    parts = [_arguments(i, f, required) for i, f in enumerate(tooling.allowed)]
    names = [function.name for function in tooling.allowed]
    literal = partial(marker_literal, tokenizer)
    calls = tool_format.calls(names, parallel=tooling.parallel, literal=literal)
    if required:
        return parts, "calls", calls
    if wish.output_format is not None:
        return [{"name": "body", **wish.output_format.part()}, *parts], "(@body | calls)", calls
    if not tool_format.trigger:
        # What begins like a call must be one
        return parts, "(TEXT | calls)", calls + "TEXT: /([^{ \\n](.|\\n)*)?/\n"
    triggered = tool_format.triggered(names, parallel=tooling.parallel, literal=literal)
    return parts, "calls", triggered


def _arguments(index: int, function: Function, required: bool) -> Part:
    """As the schema says, unless the model is only asked to call and the function isn't strict."""
    schema: object = _ANY_OBJECT
    if function.parameters is not None and (required or function.strict):
        schema = function.parameters
    try:
        return {"name": f"arguments_{index}", **json_part(schema)}
    except BadRequestError as error:
        message = f"tools: the parameters of '{function.name}': {error.message}"
        raise BadRequestError(message, param="tools") from None


def _thoughts(tokenizer: Tokenizer, thinking: Thinking) -> tuple[str, str] | None:
    """What `start` begins with, and its rules; None where no thoughts can follow the prompt."""
    if thinking is Thinking.OVER:
        return None
    begin, end = marker_literal(tokenizer, THINK), marker_literal(tokenizer, END_THINK)
    if end == quoted(END_THINK):
        reason = f"thought[suffix={end}]: /(.|\\n)*/\n"
    else:
        reason = f"thought: /(.|\\n)*/ {end}\n"
    rules = reason + "THOUGHT_SPACE: /[ \\n]{1,8}/\n"
    if thinking is Thinking.OPEN:
        return "thought THOUGHT_SPACE?", rules
    return f"({begin} thought THOUGHT_SPACE?)?", rules
