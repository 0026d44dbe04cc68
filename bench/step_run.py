"""Measures the cases of `tandem bench step`, one after another, on one engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bench.offline import offline_config
from bench.progress import Progress
from bench.stats import median
from bench.step import (
    PARTS,
    DecodeCase,
    PrefillCase,
    StepPlanOptions,
    StepReport,
)
from bench.step_engine import StepEngine, StepTimes, timed_program
from core.clock import Clock
from core.config import Config
from core.request import SamplingParams
from core.roofline import Roofline
from engine.builder import build_engine, model_len
from engine.machine import available_memory_bytes, select_device
from engine.peaks import Peaks, best_of
from text.card import ModelCard
from text.hub import resolve
from text.model_card import load_card
from text.step_costs import kv_bytes, product_kind, prompt_operations, step_weight_bytes

_MIN_STEPS = 5
_WARMUP_STEPS = 2
_MAX_POOL_SHARE = 0.5
"""Of the memory available: the rest is for weights and whoever else is here."""


class StepBench:
    """One engine and what its steps are compared with."""

    def __init__(
        self, config: Config, plan: StepPlanOptions, clock: Clock, progress: Progress
    ) -> None:
        self._card = load_card(resolve(config.model))
        self._plan = plan
        self._clock = clock
        self._progress = progress
        self._limit = model_len(config, self._card)
        self._config = _sized(config, self._card, plan, self._limit)
        engine = build_engine(self._config, self._card, num_sharers=1, progress=progress)
        self._steps = StepEngine(engine, self._config, clock)
        served = (self._card, config.model, engine.runner.dtype)
        self._peaks = Peaks(engine.device, product_kind(*served), clock)
        self._before = self._measure_roofline()
        self._weight_bytes = step_weight_bytes(*served)
        self._how = SamplingParams(max_tokens=1, temperature=plan.temperature, top_p=plan.top_p)

    def run(self, settings: Mapping[str, str]) -> StepReport:
        """All cases that fit. `settings` are shown with the report."""
        skipped: list[str] = []
        decode = tuple(self._decode_cases(skipped))
        prefill = tuple(self._prefill_cases(skipped))
        limits = best_of(self._before, self._measure_roofline())
        return StepReport(
            self._card.name,
            settings,
            limits,
            tuple(case.against(limits) for case in decode),
            tuple(case.against(limits) for case in prefill),
            tuple(skipped),
        )

    def _measure_roofline(self) -> Roofline:
        """Before the cases and after them, since other processes may be there for a while."""
        self._progress("measuring what the machine can do")
        return self._peaks.measure()

    def _decode_cases(self, skipped: list[str]) -> Iterator[DecodeCase]:
        pool = self._steps.engine.pool
        for wanted in self._plan.contexts:
            context = min(wanted, self._limit - self._plan.max_steps)
            for batch in self._plan.batches:
                needed = batch * _blocks(context + self._plan.max_steps, pool.block_size)
                if needed > pool.num_available:
                    skipped.append(
                        f"batch {batch}, context {context}: {needed} KV blocks needed, "
                        f"{pool.num_available} available"
                    )
                    continue
                self._progress(f"decode: batch {batch}, context {context}")
                yield self._decode(batch, context)

    def _decode(self, batch: int, context: int) -> DecodeCase:
        steps, plan = self._steps, self._plan
        steps.add_decoding(batch, context, plan.max_steps, self._how)
        for _ in range(_WARMUP_STEPS):
            steps.step()
        program = timed_program(steps.engine)
        if program is not None:
            program.start_timings()
        taken = self._steps_for_a_while(plan.max_steps - _WARMUP_STEPS - 1)
        forward: dict[str, float] = {}
        if program is not None:
            forward = {k: ns * 1e-9 / len(taken) for k, ns in program.timings().items()}
            program.stop_timings()
        steps.cancel_all()
        kv = kv_bytes(steps.engine.spec, batch, context)
        return DecodeCase(
            batch=batch,
            context=context,
            num_steps=len(taken),
            step_s=median([times.step_s for times in taken]),
            fastest_step_s=min(times.step_s for times in taken),
            parts_s={name: median([times.parts_s[name] for times in taken]) for name in PARTS},
            publish_s=median([times.publish_s for times in taken]),
            forward_s=forward,
            read_bytes=self._weight_bytes + kv,
        )

    def _steps_for_a_while(self, most: int) -> list[StepTimes]:
        ends_s = self._clock.now() + self._plan.min_case_s
        taken: list[StepTimes] = []
        while len(taken) < most and (len(taken) < _MIN_STEPS or self._clock.now() < ends_s):
            taken.append(self._steps.step())
        return taken

    def _prefill_cases(self, skipped: list[str]) -> Iterator[PrefillCase]:
        for prompt_len in self._plan.prompt_lens:
            if prompt_len >= self._limit:
                skipped.append(f"prompt of {prompt_len}: the limit is {self._limit} tokens")
                continue
            self._progress(f"prefill: {prompt_len} tokens")
            yield self._prefill(prompt_len)

    def _prefill(self, prompt_len: int) -> PrefillCase:
        """Repeated until `min_case_s` have passed, after a first time to warm up."""
        self._prompt_s(prompt_len)
        ends_s = self._clock.now() + self._plan.min_case_s
        taken = [self._prompt_s(prompt_len)]
        while self._clock.now() < ends_s:
            taken.append(self._prompt_s(prompt_len))
        prompt_s = median([seconds for seconds, _ in taken])
        return PrefillCase(
            prompt_len=prompt_len,
            num_chunks=taken[0][1],
            prompt_s=prompt_s,
            tokens_per_s=prompt_len / prompt_s,
            operations=prompt_operations(self._card, prompt_len),
        )

    def _prompt_s(self, prompt_len: int) -> tuple[float, int]:
        """Seconds of one prompt's steps, and how many they were."""
        self._steps.add_prompt(prompt_len, self._how)
        seconds, num_steps = 0.0, 0
        while not self._steps.is_done:
            seconds += self._steps.step().step_s
            num_steps += 1
        return seconds, num_steps


def step_config(model: str, settings: Mapping[str, str], plan: StepPlanOptions) -> Config:
    """The configuration for the largest batch of the plan. Raises ConfigError."""
    return offline_config(model, settings, max_num_seqs=max(plan.batches))


def _sized(config: Config, card: ModelCard, plan: StepPlanOptions, limit: int) -> Config:
    """With as many blocks as the largest case needs, if memory and the settings allow it."""
    if config.cache.num_blocks is not None:
        return config
    size = config.cache.block_size
    longest = min(max(plan.contexts), limit - plan.max_steps) + plan.max_steps
    grown = longest + config.scheduler.admission_growth_tokens
    wanted = max(plan.batches) * _blocks(grown, size)
    room = available_memory_bytes(select_device()) * _MAX_POOL_SHARE
    affordable = int(room) // card.kv_spec(size, "float32").bytes_per_block
    num_blocks = max(_blocks(limit, size), min(wanted, affordable))
    return config.model_copy(
        update={"cache": config.cache.model_copy(update={"num_blocks": num_blocks})}
    )


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)
