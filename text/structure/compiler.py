"""Compiles grammars from their canonical text, once each, within limits that nobody can stretch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import llguidance

from core.errors import BadRequestError
from text.structure.state import GrammarState

MAX_GRAMMAR_CHARACTERS = 512 * 1024
"""Of a canonical text; a schema of that size takes about a second to compile."""
MAX_KEPT = 64
"""Compiled grammars that are kept: each takes up to some megabytes."""


def _limits() -> llguidance.LLParserLimits:
    """Fuel in units of the library's own work: about 20 ms to begin with, 7 ms a mask at most."""
    return llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


class Grammar:
    """A compiled grammar. Safe to share between threads."""

    def __init__(self, matcher: llguidance.LLMatcher, num_words: int) -> None:
        self._matcher = matcher
        self._num_words = num_words
        self._copying = threading.Lock()

    def start(self, token_ids: Sequence[int] = ()) -> GrammarState:
        """The state of an answer that has emitted these tokens; a microsecond or two for each."""
        with self._copying:
            state = GrammarState(self._matcher.deep_copy(), self._num_words)
        state.accept_all(token_ids)
        return state


class GrammarCompiler:
    """Compiled grammars by text, the least recently used forgotten first. Thread-safe.

    The vocabulary is made when the first grammar is compiled, which holds Python's lock for a tenth
    of a second and more, or by `warm_up`.
    """

    def __init__(
        self, vocabulary: Callable[[], llguidance.LLTokenizer], kept: int = MAX_KEPT
    ) -> None:
        self._make_vocabulary = vocabulary
        self._kept = kept
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._grammars: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()
        self._making = threading.Lock()

    def warm_up(self) -> None:
        """Makes the vocabulary now, instead of with the first grammar."""
        self._whole_vocabulary()

    def known(self, text: str) -> Grammar | None:
        """The grammar if it is compiled already: no work."""
        with self._lock:
            grammar = self._grammars.get(text)
            if grammar is not None:
                self._grammars.move_to_end(text)
            return grammar

    def compile(self, text: str) -> Grammar:
        """The grammar, compiled now if it isn't kept.

        Raises BadRequestError that says what is wrong with it: a fault of the text, or more work
        than the limits allow.
        """
        grammar = self.known(text)
        if grammar is None:
            grammar = self._compile(text)
            with self._lock:
                self._grammars[text] = grammar
                while len(self._grammars) > self._kept:
                    self._grammars.popitem(last=False)
        return grammar

    def _compile(self, text: str) -> Grammar:
        if len(text) > MAX_GRAMMAR_CHARACTERS:
            raise BadRequestError(
                f"it has {len(text)} characters, more than {MAX_GRAMMAR_CHARACTERS}"
            )
        vocabulary = self._whole_vocabulary()
        matcher = llguidance.LLMatcher(vocabulary, text, log_level=0, limits=_limits())
        _check(matcher)
        matcher.compute_bitmask()  # what only shows, or is only made, with the first mask
        _check(matcher)
        return Grammar(matcher, (vocabulary.vocab_size + 31) // 32)

    def _whole_vocabulary(self) -> llguidance.LLTokenizer:
        with self._making:
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
            return self._vocabulary


def _check(matcher: llguidance.LLMatcher) -> None:
    if matcher.is_error():
        raise BadRequestError(shown_problem(matcher.get_error()))


def shown_problem(message: str) -> str:
    """The library's message in one line, without what only its authors can read."""
    if message.startswith("NoExtension"):
        return "nothing satisfies it"
    lines = (line.strip() for line in message.split("<non-verbose/>")[0].splitlines())
    return "; ".join(line for line in lines if line)[:500]
