"""The Jinja environment that chat templates run in: no side effects, and an end in sight.

A template is a program from a stranger. Jinja's sandbox keeps it away from Python's internals; a
budget keeps it from running without end: turns of loops and calls of macros take
steps, and operators must not make huge values. What is left open are single calls of string methods
with huge widths, so templates sent by clients still deserve a second thought.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from core.clock import Clock

# 1,000 messages with 100 tools take some 10,000 steps; a million take about 0.3 s.
MAX_STEPS = 1_000_000
# A macro call takes about as long as ten turns of a loop.
_MACRO_STEPS = 10
# For steps that are long themselves (filters over long lists).
MAX_RENDER_S = 10.0
# The longest contexts in use are a few million tokens of about 4 characters.
MAX_CHARS = 16 * 1024 * 1024
_MAX_EXPONENT = 1024
_MAX_INT_BITS = 4096
# Names that no template can spell, so none can replace the budget.
_BUDGET = "@budget"
_STEP = "@step"


class Budget:
    """What one rendering may still spend; each rendering starts a new one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline = clock.now() + MAX_RENDER_S
        self._steps = MAX_STEPS
        self._chars = MAX_CHARS

    def take_steps(self, num_steps: int) -> None:
        self._steps -= num_steps
        if self._steps < 0 or self._clock.now() > self._deadline:
            raise SecurityError("the chat template takes too long")

    def take_output(self, text: str) -> None:
        self._chars -= len(text)
        if self._chars < 0:
            raise SecurityError(f"the chat template writes more than {MAX_CHARS} characters")

    def variables(self) -> dict[str, object]:
        """How the rendering finds its budget again: pass it among the template's variables."""
        return {_BUDGET: self}


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it (block trimming, loop controls, transformers' helpers)."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
        )
        self.filters["tojson"] = _to_json
        self.tests[_STEP] = _take_step
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]

    def bounded_concat(self, *values: object) -> str:
        text = "".join(str(value) for value in values)
        _check_size(len(text))
        return text

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_product(left, right)
        elif isinstance(left, Sequence) and isinstance(right, Sequence):
            _check_size(len(left) + len(right))
        result: object = super().call_binop(context, operator, left, right)
        return result

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        _Metering().visit(source)
        return super()._generate(source, name, filename, defer_init)


class _Metering(NodeTransformer):
    """Adds a step to every loop turn and macro call, and bounds `~`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_step()))
        if node.test is not None:
            # Turns that the condition skips cost time as well.
            node.test = nodes.And(_step(), node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_step(_MACRO_STEPS)))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        concat = nodes.EnvironmentAttribute("bounded_concat")
        return nodes.Call(concat, node.nodes, [], None, None)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _step(num_steps: int = 1) -> nodes.Test:
    # A test, because the sandbox calls those directly: a checked call costs four times as much.
    return nodes.Test(nodes.Const(num_steps), _STEP, [], [], None, None)


@pass_context
def _take_step(context: Context, num_steps: int) -> bool:
    budget = context.parent[_BUDGET]
    assert isinstance(budget, Budget)
    budget.take_steps(num_steps)
    return True


def _check_power(base: object, exponent: object) -> None:
    if isinstance(base, int) and base.bit_length() > _MAX_EXPONENT:
        raise SecurityError("the chat template computes a huge number")
    if isinstance(exponent, int) and exponent > _MAX_EXPONENT:
        raise SecurityError("the chat template computes a huge number")


def _check_product(left: object, right: object) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, Sequence) and isinstance(times, int):
            _check_size(len(value) * times)
        if isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
            raise SecurityError("the chat template computes a huge number")


def _check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise SecurityError("the chat template makes a huge value")


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter it doesn't escape HTML: models read JSON, not web pages."""
    if indent is not None and indent > 16:
        raise SecurityError("the chat template indents by more than 16")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    if re.search(r"%[^a-zA-Z%]*\d", layout):
        raise SecurityError("the chat template asks for a date with a field width")
    return datetime.datetime.now().strftime(layout)
