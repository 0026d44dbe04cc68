"""Grammars: their text, compiling within limits, and states that follow from tokens alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fakes_byte_model import EOS, VOCAB_SIZE, write_byte_model
from fakes_tokenizer_files import save_sentencepiece
from llguidance.gbnf_to_lark import is_lark_syntax

from core.errors import BadRequestError
from text.model_card import ModelSource, load_card
from text.structure.compiler import GrammarCompiler
from text.structure.grammar_text import (
    Part,
    choice_part,
    grammar_text,
    json_part,
    lark_part,
    regex_part,
)
from text.structure.state import GrammarState
from text.structure.vocabulary import grammar_vocabulary
from text.tokenizer import Tokenizer, load_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = write_byte_model(tmp_path_factory.mktemp("byte-model"))
    return load_tokenizer(load_card(ModelSource("huggingface", directory, "bytes")))


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(lambda: grammar_vocabulary(tokenizer, VOCAB_SIZE))


def text_of(part: Part) -> str:
    return grammar_text([part])


def allowed(state: GrammarState, num_logits: int = VOCAB_SIZE) -> set[int]:
    state.fill()
    bits = np.unpackbits(state.mask.view(np.uint8), count=num_logits, bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def accepts(compiler: GrammarCompiler, tokenizer: Tokenizer, part: Part, text: str) -> bool:
    """Whether the text is a whole sentence, each token of which the mask allowed."""
    state = compiler.compile(text_of(part)).start()
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        if token_id not in allowed(state):
            return False
        state.accept(token_id)
    return state.complete or EOS in allowed(state)


@pytest.mark.parametrize(
    ("part", "right", "wrong"),
    [
        (json_part(SCHEMA), '{"name": "Jos\u00e9 \\"", "age": 7}', '{"name": "x"}'),
        (json_part({"type": "object"}), '{"a":\n  [1, {}]}', "[1]"),
        (json_part(True), "[null]", "x"),
        (regex_part("a+/b"), "aaa/b", "b"),
        (choice_part(["yes", 'no "x"']), 'no "x"', "no"),
        (lark_part('start: "a" B\nB: /[0-9]+/'), "a12", "a"),
        (lark_part('root ::= "a" [0-9]+'), "a12", "a"),
    ],
)
def test_a_grammar_allows_its_sentences_and_no_others(
    compiler: GrammarCompiler, tokenizer: Tokenizer, part: Part, right: str, wrong: str
) -> None:
    assert accepts(compiler, tokenizer, part, right)
    assert not accepts(compiler, tokenizer, part, wrong)


def test_the_end_is_allowed_exactly_where_the_grammar_accepts(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = compiler.compile(text_of(regex_part("ab*"))).start()
    assert EOS not in allowed(state)
    for token_id in tokenizer.encode("ab", add_special_tokens=False):
        state.accept(token_id)
        assert EOS in allowed(state) and not state.complete
    assert state.completes(EOS)
    state.accept(EOS)
    assert state.complete and not state.problem


def test_a_state_follows_from_its_tokens_alone(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    grammar = compiler.compile(text_of(json_part(SCHEMA)))
    tokens = tokenizer.encode('{"name": "Ann", "age": 12}', add_special_tokens=False)
    lived = grammar.start()
    for n, token_id in enumerate(tokens):
        replayed = grammar.start(tokens[:n])
        assert allowed(replayed) == allowed(lived)
        assert replayed.completes(token_id) == (n == len(tokens) - 1)
        lived.accept(token_id)
    assert lived.complete


def test_a_copy_goes_its_own_way(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = compiler.compile(text_of(choice_part(["ax", "bx"]))).start()
    a, b = (tokenizer.encode(c, add_special_tokens=False)[0] for c in "ab")
    other = state.copy()
    other.accept(b)
    assert allowed(state) == {a, b}
    assert len(allowed(other)) == 1


def test_a_token_that_is_not_allowed_is_a_problem_that_stays(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    state = compiler.compile(text_of(choice_part(["a"]))).start([tokenizer.encode("b")[-1]])
    assert state.problem
    assert allowed(state) == set()
    assert not state.complete


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (json_part({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (json_part({"not": {}}), "not"),
        (json_part({"if": {}, "then": {}}), "if"),
        (json_part({"$ref": "https://example.com/schema"}), "example.com"),
        (json_part({"type": "string", "format": "colour"}), "colour"),
        (json_part({"type": "thing"}), "thing"),
        (json_part({"type": "string", "pattern": "(?=a)b"}), "look-ahead"),
        (json_part({"enum": []}), "Unsatisfiable"),
        (json_part({"$ref": "#"}), "nothing satisfies"),
        (json_part({"multipleOf": True}), "multipleOf|boolean|number"),
        (json_part({"multipleOf": 10**400}), "."),
        (json_part({"const": "\ud800"}), "Unicode"),
        (regex_part("a("), "unclosed group"),
        ({"lark_grammar": 'start: "a" | missing'}, "missing"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_a_reason(
    compiler: GrammarCompiler, part: Part, said: str
) -> None:
    with pytest.raises(BadRequestError, match=said):
        compiler.compile(text_of(part))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: json_part([]), "object"),
        (lambda: json_part({"items": {"multipleOf": 999_983}}), "multipleOf"),
        (lambda: json_part({"items": {"multipleOf": 2.0012345}}), "multipleOf"),
        (lambda: json_part({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}), "multipleOf"),
        (lambda: json_part([{"multipleOf": 9000 + i} for i in range(9)]), "object"),
        (lambda: json_part({"anyOf": [{"multipleOf": 9000}] * 9}), "multipleOf"),
        (lambda: lark_part('start: %json {"multipleOf": 7}'), "multipleOf"),
        (lambda: lark_part('start: %json {"m\\u0075ltiple\\u004Ff": 7}'), "multipleOf"),
        (lambda: json_part(_nested(200)), "nested"),
        (lambda: regex_part(""), "empty"),
        (lambda: choice_part([]), "nothing"),
        (lambda: choice_part(["a", ""]), "empty"),
        (lambda: lark_part(" "), "empty"),
        (lambda: lark_part("what is this"), "neither"),
        (lambda: lark_part("a ::= 1"), "neither"),
        (lambda: lark_part("a ::="), "neither"),
        (lambda: lark_part("\n" * 400_000 + "x"), "GBNF may have"),
        (lambda: lark_part(_chained(501)), "GBNF may have"),
        (
            lambda: lark_part("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(9000))),
            "rules",
        ),
        (lambda: lark_part('start: %json {"$r\\u0065f": "#"}'), "ref"),
        (lambda: json_part(_referring(3000)), "references"),
    ],
)
def test_what_no_compiler_should_see_is_refused_before(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(BadRequestError, match=said):
        make()


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a"',
        '\n\n \tstart \n : "a"',
        '%llguidance {}\nstart: "a"',
        "B: /b/\nstart: B",
        "B: /b/\n" + "\n" * 100_000 + "start: B",
    ],
    ids=range(5),
)
def test_lark_is_told_by_how_a_line_begins(grammar: str) -> None:
    assert lark_part(grammar) == {"lark_grammar": grammar}
    assert is_lark_syntax(grammar[-1000:]), "as the library has it"


@pytest.mark.timeout(60)
def test_the_longest_chain_of_rules_is_converted_in_moments() -> None:
    converted = lark_part(_chained(500))["lark_grammar"]
    assert isinstance(converted, str) and converted.count("\n") > 500


@pytest.mark.parametrize(
    "part",
    [
        regex_part("((a{1,1000}){1,1000}){1,1000}"),
        regex_part("(a|b)*a(a|b){18}"),
        regex_part(r"(\p{L}{1,50}\s){1,500}"),
        lark_part('start: a\na: a a a | b | ""\nb: a | /x+/ | /[xy]+/\n'),
        json_part({"enum": [f"v{i}" for i in range(5000)]}),
        json_part({"type": "string", "maxLength": 1_000_000}),
    ],
)
def test_hostile_grammars_cost_little_or_are_a_problem(
    compiler: GrammarCompiler, part: Part
) -> None:
    """Within the limits nothing takes minutes; what exceeds them ends its own answer only."""
    state = compiler.compile(text_of(part)).start()
    for _ in range(20):
        choices = sorted(allowed(state) - {EOS})
        if not choices:
            break
        state.accept(choices[len(choices) // 2])


def test_references_are_followed_as_far_as_the_stack_allows(compiler: GrammarCompiler) -> None:
    """Thousands of them would end the process."""
    assert not compiler.compile(text_of(json_part(_referring(195)))).start().problem


def test_grammars_are_kept_and_the_least_used_forgotten(tokenizer: Tokenizer) -> None:
    made = []

    def vocabulary() -> object:
        made.append(1)
        return grammar_vocabulary(tokenizer, VOCAB_SIZE)

    small = GrammarCompiler(vocabulary, kept=2)  # type: ignore[arg-type]
    small.warm_up()
    one, two, three = (text_of(choice_part([word])) for word in ("one", "two", "three"))
    first = small.compile(one)
    small.compile(two)
    assert small.compile(one) is first
    small.compile(three)
    assert small.known(two) is None and small.known(one) is first
    assert len(made) == 1, "the vocabulary is made once"


def test_a_text_that_is_too_long_is_refused(compiler: GrammarCompiler) -> None:
    with pytest.raises(BadRequestError, match="characters"):
        compiler.compile(text_of(choice_part(["x" * 600_000])))


def test_the_vocabulary_is_padded_to_the_model(tokenizer: Tokenizer) -> None:
    padded = GrammarCompiler(lambda: grammar_vocabulary(tokenizer, VOCAB_SIZE + 100))
    state = padded.compile(text_of(regex_part("(.|\\n)*"))).start()
    free = allowed(state, VOCAB_SIZE + 100)
    assert max(free) < VOCAB_SIZE, "what is no token is never allowed"
    assert EOS in free and 0 not in free and 1 not in free, "of the special ones only the end"


def test_sentencepiece_spells_spaces_as_they_are(tmp_path: Path) -> None:
    card = save_sentencepiece(tmp_path, prefix=True)
    pieces = load_tokenizer(card)
    compiler = GrammarCompiler(lambda: grammar_vocabulary(pieces, card.vocab_size))
    state = compiler.compile(text_of(choice_part(["a hi"]))).start()
    tokens: Sequence[str] = ["a", "▁hi"]
    for token in tokens:
        token_id = pieces.token_id(token)
        assert token_id in allowed(state, card.vocab_size)
        assert token_id is not None
        state.accept(token_id)
    assert state.complete


def test_the_text_of_a_grammar_is_canonical() -> None:
    text = text_of(json_part({"b": 1, "a": "\u00e9"}))
    assert json.loads(text)["grammars"][0]["json_schema"]["a"] == "\u00e9"
    assert text == text_of(json_part({"b": 1, "a": "\u00e9"}))
    assert text.index('"b"') < text.index('"a"'), "properties keep their order"


def _chained(num_rules: int) -> str:
    """Each rule known to be a terminal only after the one below it."""
    rules = [f"r{i} ::= r{i + 1}" for i in range(num_rules - 2)]
    return "\n".join(["root ::= r0", *rules, f"r{num_rules - 2} ::= [a]"])


def _referring(num_definitions: int) -> dict[str, object]:
    """Each definition leads to the next one."""
    links: dict[str, object] = {
        f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(num_definitions)
    }
    links[f"d{num_definitions}"] = {"type": "string"}
    return {"$ref": "#/$defs/d0", "$defs": links}


def _nested(depth: int) -> object:
    schema: object = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema
