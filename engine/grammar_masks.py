"""Masks of the rows that follow a grammar, computed by a thread while the step computes.

begin(rows)      the thread fills one mask after the other: nothing of it holds Python's lock
the step         computes logits meanwhile
end()            waits for the last mask, long there as a rule
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from engine.row_failure import RowsFailedError
from engine.sample_row import SampleRow
from text.structure.state import GrammarState


class GrammarFailedError(RowsFailedError):
    """The grammars of `rows` can't be followed any further: a limit was met."""

    code = "grammar_failed"


class GrammarMasks:
    """Fills the masks of a step's rows. The thread is started by the first row with a grammar."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def begin(self, rows: Sequence[SampleRow]) -> Callable[[], None]:
        """Starts filling; what it returns waits until every row's mask can be read.

        That raises GrammarFailedError, which names the rows whose grammar has a problem.
        """
        # Choices that have emitted nothing yet share one state
        states = list({id(row.grammar): row.grammar for row in rows if row.grammar}.values())
        if not states:
            return _nothing
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-masks")
        filled = self._thread.submit(_fill, states)

        def end() -> None:
            if filled.cancel():  # the thread got no core yet: this one has nothing better to do
                _fill(states)
            else:
                filled.result()
            _check(rows)

        return end


def _nothing() -> None:
    """No row has a grammar."""


def _fill(states: Sequence[GrammarState]) -> None:
    for state in states:
        state.fill()


def _check(rows: Sequence[SampleRow]) -> None:
    problems = {i: row.grammar.problem for i, row in enumerate(rows) if row.grammar}
    failed = {i: problem for i, problem in problems.items() if problem}
    if failed:
        raise GrammarFailedError(next(iter(failed.values())), tuple(failed))
