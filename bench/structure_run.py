"""Measures decode steps with and without a grammar, in turn, on one engine in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bench.lengths import parse_lengths
from bench.offline import attempt, load_engine
from bench.progress import Progress
from bench.prompts import TokenRange
from bench.structure import StructureCase, StructureReport, structure_case
from bench.workload import synthetic_items, take
from core.clock import Clock, MonotonicClock
from core.config import Config
from core.request import Attempt, SamplingParams, TokenEvent
from text.structure.grammar_text import grammar_text, json_part

if TYPE_CHECKING:
    from decode_worker.offline import OfflineEngine

PROMPT_LEN = "64"
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
    "temperature 0.8": SamplingParams(max_tokens=1, temperature=0.8, seed=1, ignore_eos=True),
}
SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "mail": {"type": "string", "pattern": "^[a-z]{1,12}@[a-z]{1,12}\\.(com|org)$"},
            "tags": {"type": "array", "items": {"enum": ["new", "old", "sale"]}, "maxItems": 4},
        },
        "required": ["name", "age", "mail", "tags"],
        "additionalProperties": False,
    },
}
"""Never complete within a run; strings, bounds, a pattern and an enum in every element."""


def measure_structure(
    config: Config, *, batch: int, num_tokens: int, repeats: int, progress: Progress
) -> StructureReport:
    """All cases, each `repeats` times with and without. Raises TandemError."""
    engine = load_engine(config, progress)
    bench = _Bench(engine, MonotonicClock(), batch, num_tokens)
    compile_s = bench.compile()
    bench.run("warm-up", SAMPLINGS["greedy"], structured=True)
    cases: list[StructureCase] = []
    for name, sampling in SAMPLINGS.items():
        free_s: list[float] = []
        structured_s: list[float] = []
        masks_s: list[float] = []
        for repeat in range(repeats):
            progress(f"{name}: run {repeat + 1} of {repeats}")
            free_s += bench.run(f"{name}/{repeat}/free", sampling, structured=False)
            structured_s += bench.run(f"{name}/{repeat}", sampling, structured=True)
            masks_s += bench.masks()
        cases.append(structure_case(name, batch, free_s, structured_s, masks_s))
    return StructureReport(engine.engine.card.name, compile_s, tuple(cases))


class _Bench:
    """One engine, and the tokens of the last structured run."""

    def __init__(self, engine: OfflineEngine, clock: Clock, batch: int, num_tokens: int) -> None:
        self._engine = engine
        self._clock = clock
        self._batch = batch
        lengths = parse_lengths(PROMPT_LEN), parse_lengths(str(num_tokens))
        items = synthetic_items(*lengths, "0")
        self._items = list(take(items, num_requests=batch, duration_s=None))
        self._grammar = grammar_text([json_part(SCHEMA)])
        self._outputs: dict[str, list[int]] = {}

    def compile(self) -> float:
        """Seconds of the first grammar, without the vocabulary that is made for it."""
        grammars = self._engine.engine.grammars
        grammars.compile(grammar_text([json_part({"type": "object"})]))
        started_s = self._clock.now()
        grammars.compile(self._grammar)
        return self._clock.now() - started_s

    def run(self, run: str, sampling: SamplingParams, *, structured: bool) -> list[float]:
        """Seconds of each step in which all of the batch decode."""
        attempts = [self._attempt(run, i, sampling, structured) for i in range(self._batch)]
        outputs: dict[str, list[int]] = {a.transfer_id: [] for a in attempts}
        for made in attempts:
            self._engine.submit(made)
        steps_s: list[float] = []
        while self._engine.num_unfinished:
            decodes = all(outputs.values())
            started_s = self._clock.now()
            events = self._engine.step()
            step_s = self._clock.now() - started_s
            tokens = [event for event in events if isinstance(event, TokenEvent)]
            for token in tokens:
                outputs[token.transfer_id].append(token.token_id)
            if decodes and len(tokens) == self._batch:
                steps_s.append(step_s)
        if structured:
            self._outputs = outputs
        return steps_s

    def masks(self) -> list[float]:
        """Seconds that the masks of each step of the last structured run take by themselves."""
        grammar = self._engine.engine.grammars.compile(self._grammar)
        states = [grammar.start() for _ in self._outputs]
        masks_s: list[float] = []
        for tokens in zip(*self._outputs.values(), strict=False):
            started_s = self._clock.now()
            for state in states:
                state.fill()
            masks_s.append(self._clock.now() - started_s)
            for state, token_id in zip(states, tokens, strict=True):
                state.accept(token_id)
        return masks_s

    def _attempt(self, run: str, index: int, sampling: SamplingParams, structured: bool) -> Attempt:
        tokens = TokenRange().within(self._engine.engine.card.vocab_size)
        return replace(
            attempt(self._items[index], run, tokens),
            sampling=replace(sampling, max_tokens=self._items[index].output_len),
            grammar=self._grammar if structured else "",
        )
