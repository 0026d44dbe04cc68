"""A real engine whose steps are taken apart: the parts of `StepLoop`, called and timed one by one.

Decode cases don't compute their prompts. They come as from a prefill worker whose KV is there at
once: the scheduler admits, reserves and imports as ever, and the blocks hold what the bench put
there, which costs the kernels as much to read as real KV.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import torch

from bench.step import PARTS
from core.clock import Clock
from core.config import Config
from core.handoff import Handoff
from core.request import Attempt, SamplingParams
from decode_worker.build import build_decode_role
from engine.batch import flatten, sample_rows
from engine.greedy import only_largest
from engine.peaks import wait_for
from engine.role import Cancel, Submit
from kv_transfer.events import FirstToken, PullClosed
from protos import codec

if TYPE_CHECKING:
    from engine.builder import Engine


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step's parts in seconds, by name in `PARTS`; `publish_s` is beside the next step."""

    parts_s: Mapping[str, float]
    publish_s: float

    @property
    def step_s(self) -> float:
        return sum(self.parts_s.values())


class StepEngine:
    """One engine with a decode role, stepped part by part."""

    def __init__(self, engine: Engine, config: Config, clock: Clock) -> None:
        self.engine = engine
        self._clock = clock
        self._pulled: list[Handoff] = []
        receiver = _InstantReceiver(self._pulled)
        self._role = build_decode_role(engine, config.scheduler, receiver, engine.storage)
        self._num_attempts = 0
        fill_blocks(engine)

    def add_decoding(self, batch: int, context: int, max_tokens: int, how: SamplingParams) -> None:
        """`batch` sequences of `context` tokens, all of them in the next step."""
        for _ in range(batch):
            attempt = self._attempt(context - 1, max_tokens, how)
            self._role.handle(Submit(attempt, self._handoff(attempt)), self._clock.now())
        self._role.schedule(self._clock.now())  # opens the pulls; nothing can be computed yet
        first = (FirstToken(choice=0, token_id=0, finished=False),)
        for handoff in self._pulled:
            closed = PullClosed(handoff.transfer_id, first, chunk_end_age_s=0.0)
            self._role.handle(closed, self._clock.now())
        assert len(self._pulled) == batch, "the case was said to fit"
        self._pulled.clear()

    def add_prompt(self, prompt_len: int, how: SamplingParams) -> None:
        """A prompt to be computed here; it ends with its first token."""
        self._role.handle(Submit(self._attempt(prompt_len, 1, how)), self._clock.now())

    @property
    def is_done(self) -> bool:
        return self._role.num_unfinished == 0

    def step(self) -> StepTimes:
        """Everything between two steps, and one step."""
        role, engine, clock = self._role, self.engine, self._clock
        times = [clock.now()]
        plan = role.schedule(times[0])
        assert plan is not None, "there is something to compute"
        times.append(clock.now())
        rows = sample_rows(plan, engine.eos_token_ids)
        step = flatten(plan, engine.pool.block_size)
        times.append(clock.now())
        logits = engine.runner.compute(step, only_largest(rows, len(step.logits_rows)))
        wait_for(engine.device)
        times.append(clock.now())
        sampled = engine.runner.sample(logits, rows) if rows else []
        times.append(clock.now())
        role.complete(plan, sampled, times[-1])
        times.append(clock.now())
        role.load()
        events = role.take_events()
        times.append(clock.now())
        for message in codec.events_to_wire(events):
            message.SerializeToString()
        publish_s = clock.now() - times[-1]
        parts = zip(PARTS, times[:-1], times[1:], strict=True)
        return StepTimes({name: end - start for name, start, end in parts}, publish_s)

    def cancel_all(self) -> None:
        for number in range(self._num_attempts):
            self._role.handle(Cancel(f"step/{number}"), self._clock.now())
        self._role.take_events()

    def _attempt(self, prompt_len: int, max_tokens: int, how: SamplingParams) -> Attempt:
        """No two share a prefix, so nothing is found cached."""
        number = self._num_attempts
        self._num_attempts += 1
        vocab_size = self.engine.card.vocab_size
        name = f"step/{number}"
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=how.temperature,
            top_p=how.top_p,
            seed=number,
            ignore_eos=True,
        )
        return Attempt(
            request_id=name,
            transfer_id=name,
            model="",
            token_ids=tuple(_token(number, i) % vocab_size for i in range(prompt_len)),
            num_prompt_tokens=prompt_len,
            choices=(0,),
            sampling=params,
            deadline_s=float("inf"),
        )

    def _handoff(self, attempt: Attempt) -> Handoff:
        return Handoff(
            transfer_id=attempt.transfer_id,
            worker_id="bench",
            epoch="",
            address="",
            compat_key=self.engine.compat_key,
            num_tokens=len(attempt.token_ids),
            first_block=0,
            num_blocks=-(-len(attempt.token_ids) // self.engine.pool.block_size),
            lease_s=60.0,
        )


class _InstantReceiver:
    """Notes the pulls: their KV is in the blocks already."""

    def __init__(self, pulled: list[Handoff]) -> None:
        self._pulled = pulled

    def pull(self, handoff: Handoff, num_held_blocks: int) -> None:
        self._pulled.append(handoff)

    def abort(self, transfer_id: str) -> None:
        pass


class TimedProgram(Protocol):
    """A step program that tells what it spends its time on (`CpuProgram`)."""

    def start_timings(self) -> None: ...

    def timings(self) -> dict[str, int]: ...

    def stop_timings(self) -> None: ...


def timed_program(engine: Engine) -> TimedProgram | None:
    """The engine's program, if it can tell."""
    program = engine.runner.program
    return cast(TimedProgram, program) if hasattr(program, "start_timings") else None


def fill_blocks(engine: Engine) -> None:
    """Writes all KV once: pages that were never written are all one page, which is in the cache."""
    num_layers = sum(group.num_layers for group in engine.spec.groups)
    for index in range(num_layers):
        cache = engine.storage.layer(index)
        for values in (cache.k, cache.v):
            _fill(values)
        for scales in (cache.k_scales, cache.v_scales):
            if scales is not None:
                scales.fill_(0.125)


def _fill(values: torch.Tensor) -> None:
    if values.dtype.itemsize > 1:
        values.fill_(0.5)
    else:
        values.view(torch.int8).fill_(0x30)  # 0.5 in e4m3, 48 in int8


def _token(number: int, index: int) -> int:
    """Some token that differs in the first block of any two prompts."""
    return 3 + (number * 7919 + index * 31 + (index == 0) * number) % 32_003
