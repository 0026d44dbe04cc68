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
    """All cases, each `repeats` times. Raises TandemError."""
    bench = _Bench(load_engine(config, progress), config, batch, num_tokens)
    compile_s = bench.compile()
    bench.run("warm-up", SAMPLINGS["greedy"])
    cases: list[StructureCase] = []
    for name, sampling in SAMPLINGS.items():
        pairs_s: list[tuple[float, float]] = []
        masks_s: list[float] = []
        for repeat in range(repeats):
            progress(f"{name}: run {repeat + 1} of {repeats}")
            pairs_s += bench.run(f"{name}/{repeat}", sampling)
            masks_s += bench.masks()
        cases.append(structure_case(name, batch, pairs_s, masks_s))
    return StructureReport(bench.model, compile_s, tuple(cases))


class _Bench:
    """One engine with two roles on it, whose steps take turns: one has grammars, one has none."""

    def __init__(self, free: OfflineEngine, config: Config, batch: int, num_tokens: int) -> None:
        from decode_worker.offline import OfflineEngine

        self.model = free.engine.card.name
        self._roles = (free, OfflineEngine(free.engine, config))
        self._grammars = free.engine.grammars
        self._tokens = TokenRange().within(free.engine.card.vocab_size)
        self._clock: Clock = MonotonicClock()
        lengths = parse_lengths(PROMPT_LEN), parse_lengths(str(num_tokens))
        self._items = list(
            take(synthetic_items(*lengths, "0"), num_requests=batch, duration_s=None)
        )
        self._grammar = grammar_text([json_part(SCHEMA)])
        self._outputs: dict[str, list[int]] = {}
        """Of the last run with grammars."""

    def compile(self) -> float:
        """Seconds of the grammar, without the vocabulary that is made with the first one."""
        self._grammars.warm_up()
        started_s = self._clock.now()
        self._grammars.compile(self._grammar)
        return self._clock.now() - started_s

    def run(self, run: str, sampling: SamplingParams) -> list[tuple[float, float]]:
        """Seconds of each two steps, without and with grammars, in which all of a batch decode."""
        outputs: list[dict[str, list[int]]] = []
        for role, grammar in zip(self._roles, ("", self._grammar), strict=True):
            kind = "structured" if grammar else "free"
            attempts = [self._attempt(f"{run}/{kind}", i, sampling, grammar) for i in self._places]
            outputs.append({made.transfer_id: [] for made in attempts})
            for made in attempts:
                role.submit(made)
        pairs_s: list[tuple[float, float]] = []
        while any(role.num_unfinished for role in self._roles):
            free_s, structured_s = map(self._step, self._roles, outputs)
            if free_s is not None and structured_s is not None:
                pairs_s.append((free_s, structured_s))
        self._outputs = outputs[1]
        return pairs_s

    def masks(self) -> list[float]:
        """Seconds that the masks of each step of the last run take by themselves."""
        grammar = self._grammars.compile(self._grammar)
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

    @property
    def _places(self) -> range:
        return range(len(self._items))

    def _step(self, role: OfflineEngine, outputs: dict[str, list[int]]) -> float | None:
        """Seconds of the role's next step; None unless all of the batch decoded in it."""
        decodes = all(outputs.values())
        started_s = self._clock.now()
        events = role.step()
        step_s = self._clock.now() - started_s
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        for token in tokens:
            outputs[token.transfer_id].append(token.token_id)
        return step_s if decodes and len(tokens) == len(self._items) else None

    def _attempt(self, run: str, index: int, sampling: SamplingParams, grammar: str) -> Attempt:
        item = self._items[index]
        return replace(
            attempt(item, run, self._tokens),
            sampling=replace(sampling, max_tokens=item.output_len),
            grammar=grammar,
        )
