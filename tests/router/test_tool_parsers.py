"""Parsers of calls: what they find is the same however the text is cut, and no marker leaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from router.tools.call_event import CallArguments, CallParser, CallStart, Piece, joined
from router.tools.hermes import HermesParser
from router.tools.llama3 import Llama3Parser
from router.tools.mistral import MistralParser

NAMES = frozenset({"weather", "time", "f"})
Found = tuple[str, list[tuple[str, str]]]
"""Content, and calls with their arguments."""

PARSERS: dict[str, Callable[[], CallParser]] = {
    "hermes": HermesParser,
    "llama3": lambda: Llama3Parser(NAMES),
    "mistral": MistralParser,
}
W = '{"city": "Par\\"is}", "days": [1, {"a": null}]}'
T = "{}"


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CASES: list[tuple[str, str, Found]] = [
    ("hermes", "Just text, with a < b.", ("Just text, with a < b.", [])),
    ("hermes", hermes("weather", W), ("", [("weather", W)])),
    ("hermes", f"I look.\n{hermes('weather', W)}", ("I look.", [("weather", W)])),
    (
        "hermes",
        f"{hermes('weather', W)}\n{hermes('time', T)}\n",
        ("", [("weather", W), ("time", T)]),
    ),
    ("hermes", f"{hermes('f', T)}\n\nDone.", ("\n\nDone.", [("f", T)])),
    (
        "hermes",
        '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>',
        ("", [("f", '{"x": 1}')]),
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', ("", [("f", "{}")])),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
        ("", [("f", '{"x": 1}')]),
    ),
    ("hermes", "<tool_call>nothing</tool_call> more", ("nothing more", [])),
    ("hermes", '<tool_call>{"nom": 1}</tool_call>', ('{"nom": 1}', [])),
    ("hermes", "a <tool_box> b", ("a <tool_box> b", [])),
    ("hermes", "ends in <tool", ("ends in <tool", [])),
    ("llama3", "Just { text }.", ("Just { text }.", [])),
    ("llama3", f'{{"name": "weather", "parameters": {W}}}', ("", [("weather", W)])),
    ("llama3", f'<|python_tag|>{{"name": "f", "parameters": {T}}}', ("", [("f", T)])),
    (
        "llama3",
        f'{{"type": "function", "name": "f", "parameters": {T}}}; '
        f'{{"name": "time", "parameters": {W}}}',
        ("", [("f", T), ("time", W)]),
    ),
    ("llama3", f' \n{{"name": "f", "parameters": {T}}}\n', ("", [("f", T)])),
    ("llama3", '{"name": "Bob", "parameters": {}}', ('{"name": "Bob", "parameters": {}}', [])),
    ("llama3", '{"answer": 42}', ('{"answer": 42}', [])),
    ("llama3", "<|python_tag|>print(1)", ("print(1)", [])),
    ("llama3", f'So: <|python_tag|>{{"name": "f", "arguments": {T}}}', ("So:", [("f", T)])),
    ("mistral", "Just [text].", ("Just [text].", [])),
    ("mistral", f'[TOOL_CALLS][{{"name": "weather", "arguments": {W}}}]', ("", [("weather", W)])),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {T}}}, {{"arguments": {W}, "name": "time"}}]',
        ("", [("f", T), ("time", W)]),
    ),
    ("mistral", f"Well. [TOOL_CALLS]weather{W}", ("Well.", [("weather", W)])),
    (
        "mistral",
        f"[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{W}[TOOL_CALLS]f[ARGS]{T}",
        ("", [("weather", W), ("f", T)]),
    ),
    ("mistral", "[TOOL_CALLS]nothing", ("nothing", [])),
    ("mistral", "[TOOL_CALLS][1, 2]", ("[1, 2]", [])),
    ("mistral", "[TOOL_BOX]", ("[TOOL_BOX]", [])),
]


def run(parser: CallParser, pieces: Sequence[str], *, cut: bool = False) -> list[Piece]:
    found: list[Piece] = []
    for piece in pieces:
        found += parser.push(piece)
    return joined(found + parser.finish(cut=cut))


def found_in(pieces: Sequence[Piece]) -> Found:
    content, calls = "", []
    for piece in pieces:
        if isinstance(piece, CallStart):
            calls.append((piece.name, ""))
        elif isinstance(piece, CallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
        else:
            content += piece
    return content, calls


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
def test_a_text_is_read_alike_however_it_is_cut(name: str, text: str, expected: Found) -> None:
    make = PARSERS[name]
    assert found_in(run(make(), [text])) == expected
    assert found_in(run(make(), list(text))) == expected
    for at in range(len(text)):
        assert found_in(run(make(), [text[:at], text[at:]])) == expected, at


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
def test_a_text_cut_by_a_limit_leaks_no_part_of_a_marker(
    name: str, text: str, expected: Found
) -> None:
    for end in range(len(text)):
        content, calls = found_in(run(PARSERS[name](), list(text[:end]), cut=True))
        assert expected[0].startswith(content.rstrip()) or not expected[1]
        for (got, got_arguments), (right, right_arguments) in zip(calls, expected[1], strict=False):
            assert got == right and right_arguments.startswith(got_arguments)
        for marker in ("<tool_c", "</tool_c", "<|python", "[TOOL_C"):
            assert marker not in content


def test_arguments_come_in_pieces_once_the_name_is_known() -> None:
    parser = HermesParser()
    found = [parser.push(c) for c in hermes("weather", W)]
    texts = [p.text for pieces in found for p in pieces if isinstance(p, CallArguments)]
    assert len(texts) > 20, "they are not held back"
    assert json.loads("".join(texts)) == json.loads(W)


@pytest.mark.parametrize("key", ["name", "type", "id"])
def test_a_value_nested_without_end_is_no_call(key: str) -> None:
    """A model repeats what it is told to."""
    value = "[" * 5000 + "]" * 5000
    text = f'<tool_call>{{"{key}": {value}, "arguments": {{}}}}</tool_call>'
    content, calls = found_in(run(HermesParser(), [text]))
    assert not calls
    assert content.startswith(f'{{"{key}": [[[')
