"""How a model's dialect is found, what templates are given, and grammars with special tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import tokenizers
from fakes_byte_model import EOS, SPECIAL, VOCAB_SIZE, write_byte_model

from core.config import ModelConfig
from core.errors import BadRequestError
from router.dialect import Dialect, make_dialect, marker_literal, markers_kept
from router.message.thoughts import Thinking, thinking_after
from router.structure.answer_grammar import Wish, answer_grammar, needs_grammar
from router.structure.output_format import OutputFormat, any_object
from router.tools.conversation import for_template, without_tool_support
from router.tools.formats import HERMES, LLAMA3, MISTRAL, ToolFormat
from router.tools.tooling import Function, Tooling, make_tooling
from text.model_card import ModelSource, load_card
from text.structure.compiler import Grammar, GrammarCompiler
from text.structure.vocabulary import grammar_vocabulary
from text.tokenizer import Tokenizer, load_tokenizer

MARKERS = ("[TOOL_CALLS]", "<|python_tag|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
F = Function("f", parameters=SCHEMA)
CALL: dict[str, Any] = {
    "id": "call_abc",
    "type": "function",
    "function": {"name": "f", "arguments": '{"x": 1}'},
}


@pytest.fixture(scope="module")
def special(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The byte model's tokenizer with the markers as special tokens."""
    directory = write_byte_model(tmp_path_factory.mktemp("byte-model"))
    path = directory / "tokenizer.json"
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.add_special_tokens([*SPECIAL, *MARKERS])
    backend.save(str(path))
    config = json.loads((directory / "config.json").read_text())
    config["vocab_size"] = VOCAB_SIZE + len(MARKERS)
    (directory / "config.json").write_text(json.dumps(config))
    return load_tokenizer(load_card(ModelSource("huggingface", directory, "bytes")))


def compiled(
    special: Tokenizer, dialect: Dialect, wish: Wish, thinking: Thinking = Thinking.OVER
) -> Grammar:
    text = answer_grammar(wish, dialect, special, thinking)
    size = VOCAB_SIZE + len(MARKERS)
    return GrammarCompiler(lambda: grammar_vocabulary(special, size)).compile(text)


def outcome(grammar: Grammar, special: Tokenizer, text: str) -> Literal["whole", "part", "wrong"]:
    state = grammar.start(special.encode(text, add_special_tokens=False))
    if state.problem:
        return "wrong"
    return "whole" if state.complete or state.completes(EOS) else "part"


def tooling(choice: Literal["auto", "required"], *, strict: bool = False) -> Tooling:
    made = make_tooling([Function("f", "", SCHEMA, strict)], choice=choice)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, HERMES),
        ("{{ messages }}", HERMES),
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("<|start_header_id|>{% if tools %}<|python_tag|>{% endif %}", LLAMA3),
        ("<|start_header_id|>{% if tools %}{% endif %}", LLAMA3),
        ("[AVAILABLE_TOOLS][TOOL_CALLS]", MISTRAL),
    ],
)
def test_the_format_of_calls_is_read_off_the_template(
    template: str | None, expected: ToolFormat
) -> None:
    assert make_dialect(ModelConfig(), template).tools is expected


def test_settings_decide_over_the_template() -> None:
    template = "<tool_call> <think> tools"
    assert make_dialect(ModelConfig(), template) == Dialect(HERMES, True, True)
    chosen = make_dialect(ModelConfig(tool_parser="none", reasoning_parser="none"), template)
    assert chosen.tools is None and not chosen.thinks
    assert make_dialect(ModelConfig(tool_parser="mistral"), template).tools is MISTRAL
    assert make_dialect(ModelConfig(reasoning_parser="think"), None).thinks


def test_markers_that_are_special_tokens_are_kept_and_spelled_as_tokens(
    special: Tokenizer,
) -> None:
    assert marker_literal(special, "</think>") == f"<[{special.token_id('</think>')}]>"
    assert marker_literal(special, "[ARGS]") == '"[ARGS]"'
    kept = markers_kept(Dialect(MISTRAL, True, True), special, calls=True)
    assert kept == {special.token_id(m) for m in ("[TOOL_CALLS]", "<think>", "</think>")}
    assert markers_kept(Dialect(MISTRAL), special, calls=False) == frozenset()


@pytest.mark.parametrize(
    ("tool_format", "right", "wrong"),
    [
        (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]', "[TOOL_CALLS][]"),
        (LLAMA3, '{"name": "f", "parameters": {"x": 1}}', '{"name": "g"'),
        (
            HERMES,
            '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
            '<tool_call>\n{"name": "f", "arguments": {"y"',
        ),
    ],
)
def test_required_calls_and_nothing_else(
    special: Tokenizer, tool_format: ToolFormat, right: str, wrong: str
) -> None:
    grammar = compiled(special, Dialect(tool_format), Wish(None, tooling("required")))
    assert outcome(grammar, special, right) == "whole"
    assert outcome(grammar, special, wrong) == "wrong"
    assert outcome(grammar, special, "Hello") == "wrong"


@pytest.mark.parametrize("tool_format", [MISTRAL, LLAMA3, HERMES])
def test_text_or_strict_calls(special: Tokenizer, tool_format: ToolFormat) -> None:
    wish = Wish(None, tooling("auto", strict=True))
    assert needs_grammar(wish)
    grammar = compiled(special, Dialect(tool_format), wish)
    assert outcome(grammar, special, "Hello [there] <you>.") == "whole"
    begins = {
        "mistral": 'Well. [TOOL_CALLS][{"name": "f", "arguments": {"x": 1',
        "llama3": '{"name": "f", "parameters": {"x": 1',
        "hermes": 'Well. <tool_call>\n{"name": "f", "arguments": {"x": 1',
    }
    begun = begins[tool_format.name]
    assert outcome(grammar, special, begun) == "part"
    assert outcome(grammar, special, begun.replace('"x"', '"y"')) == "wrong"


@pytest.mark.parametrize("tool_format", [MISTRAL, LLAMA3, HERMES])
def test_a_format_or_calls(special: Tokenizer, tool_format: ToolFormat) -> None:
    wish = Wish(OutputFormat("regex", "[0-9]+ apples", "guided_regex"), tooling("auto"))
    grammar = compiled(special, Dialect(tool_format), wish)
    assert outcome(grammar, special, "12 apples") == "whole"
    assert outcome(grammar, special, "Hello") == "wrong"


@pytest.mark.parametrize(
    ("thinking", "text", "expected"),
    [
        (Thinking.UNDECIDED, '{"a": 1}', "whole"),
        (Thinking.UNDECIDED, '<think>Hm "{"</think>\n\n{"a": 1}', "whole"),
        (Thinking.UNDECIDED, "Hm", "wrong"),
        (Thinking.OPEN, 'Hm</think>{"a": 1}', "whole"),
        (Thinking.OPEN, '{"a": 1}', "part"),
        (Thinking.OVER, '{"a": 1}', "whole"),
        (Thinking.OVER, "<think>", "wrong"),
    ],
)
@pytest.mark.parametrize("kind", ["json", "choice", "grammar"])
def test_structure_begins_behind_thoughts_that_are_special_tokens(
    special: Tokenizer, thinking: Thinking, text: str, expected: str, kind: str
) -> None:
    body = '{"a": 1}'
    wishes = {
        "json": any_object("response_format"),
        "choice": OutputFormat("choice", json.dumps([body]), "guided_choice"),
        "grammar": OutputFormat("grammar", f"start: {json.dumps(body)}", "guided_grammar"),
    }
    dialect = Dialect(HERMES, True, thinks=True)
    grammar = compiled(special, dialect, Wish(wishes[kind], None), thinking)
    assert outcome(grammar, special, text) == expected


@pytest.mark.parametrize(
    ("tail", "continued", "expected"),
    [
        ("assistant:", None, Thinking.UNDECIDED),
        ("assistant:<think>", None, Thinking.OPEN),
        ("<think>\n\n</think>", None, Thinking.OVER),
        ("anything", "<think>I was", Thinking.OPEN),
        ("anything", "<think>I was</think>It", Thinking.OVER),
        ("anything", "It is", Thinking.OVER),
    ],
)
def test_the_prompt_shows_how_an_answer_begins(
    tail: str, continued: str | None, expected: Thinking
) -> None:
    assert thinking_after(tail, continued) is expected


def test_templates_get_arguments_as_objects_and_ids_that_they_take() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "7", "tool_call_id": "call_abc"},
    ]
    plain = for_template(messages, HERMES)
    assert plain[0]["tool_calls"][0]["function"]["arguments"] == {"x": 1}  # type: ignore[index]
    assert plain[1]["tool_call_id"] == "call_abc"
    short = for_template(messages, MISTRAL)
    call_id = short[1]["tool_call_id"]
    assert isinstance(call_id, str) and len(call_id) == 9 and call_id.isalnum()
    assert short[0]["tool_calls"][0]["id"] == call_id  # type: ignore[index]
    assert messages[0]["tool_calls"] == [CALL], "what came is not changed"


def test_arguments_that_are_no_object_are_refused() -> None:
    broken = {**CALL, "function": {"name": "f", "arguments": "[1"}}
    with pytest.raises(BadRequestError, match="arguments"):
        for_template([{"role": "assistant", "tool_calls": [broken]}], HERMES)


def test_a_template_without_tools_is_told_of_them_in_words() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "7", "tool_call_id": "call_abc"},
    ]
    told = without_tool_support(messages, [F.to_template()])
    assert [m["role"] for m in told] == ["system", "user", "assistant", "user"]
    assert str(told[0]["content"]).startswith("Be kind.") and '"name": "f"' in str(told[0])
    assert '{"name": "f", "arguments": {"x": 1}}' in str(told[2]["content"])
    assert "7" in str(told[3]["content"])
    assert without_tool_support(messages[1:2], [F.to_template()])[0]["role"] == "system"


def test_a_template_that_refuses_system_messages_is_told_in_the_first_one() -> None:
    template = "{{ raise_exception('System role not supported') }}"
    dialect = make_dialect(ModelConfig(), template)
    messages, tools = dialect.messages([{"role": "user", "content": "Go."}], [F.to_template()])
    assert tools is None and len(messages) == 1 and messages[0]["role"] == "user"
    assert '"name": "f"' in str(messages[0]) and str(messages[0]["content"]).endswith("Go.")


def test_without_a_tool_parser_tools_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="without tools"):
        Dialect(None).messages([{"role": "user", "content": "x"}], [F.to_template()])
