"""Which pair (P, D) serves a request: a pure function of observed load, prefixes and the request.

usable = connected, ready, not draining, not full      (else a typed reason)
P      = least (waiting prompt tokens - weight x its cached tokens)
D      = roomy first, then fewest sequences, then most free blocks
pair   = the best P and the best D among workers of one compat key
         (a choice that moves with its KV needs a D only, of that KV's key)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from core.load import LoadReport
from core.request import Phase

Reason = Literal["no_worker", "draining", "saturated"]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as the router sees it now: its last report, and what we sent it since.

    `assigned_*` count attempts of this router that no load report can contain yet.
    """

    worker_id: str
    epoch: str
    role: Phase
    compat_key: str
    block_size: int
    load: LoadReport
    draining: bool = False
    assigned_sequences: int = 0
    assigned_prefill_tokens: int = 0
    assigned_blocks: int = 0
    num_routed: int = 0
    """Attempts sent in this worker's life; breaks ties, so that idle workers take turns."""

    @property
    def num_sequences(self) -> int:
        return self.load.num_running + self.load.num_waiting + self.assigned_sequences

    @property
    def prefill_tokens(self) -> int:
        return self.load.waiting_prefill_tokens + self.assigned_prefill_tokens

    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds, less what is promised to admitted sequences or just assigned."""
        blocks = self.load.kv_blocks
        unheld = blocks.get("free", 0) + blocks.get("cached", 0)
        return unheld - self.load.num_promised_blocks - self.assigned_blocks


@dataclass(frozen=True, slots=True)
class Demand:
    """What one attempt asks for. `num_new_tokens` is the most it may still emit, per choice."""

    num_tokens: int
    num_new_tokens: int
    num_choices: int = 1
    excluded: frozenset[str] = frozenset()
    """Epochs that just failed this request; used only when nobody else makes a pair."""

    def num_blocks(self, block_size: int) -> int:
        """KV blocks at the end: the prompt's, shared by all choices, and each choice's growth."""
        prompt = -(-self.num_tokens // block_size)
        growth = -(-self.num_new_tokens // block_size)
        return prompt + self.num_choices * growth


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What an operator decides about routing."""

    combined: bool = False
    prefix_affinity_weight: float = 1.0
    max_num_waiting: int = 4096


@dataclass(frozen=True, slots=True)
class Pair:
    """The workers of one attempt. Without P, D computes the prompt; without D, P's token is all."""

    prefill: WorkerView | None
    decode: WorkerView | None


@dataclass(frozen=True, slots=True)
class NoPair:
    """Nobody can serve the request now, and why."""

    reason: Reason
    message: str


def choose_pair(
    workers: Sequence[WorkerView],
    demand: Demand,
    cached_blocks: Mapping[str, int],
    settings: PolicySettings,
) -> Pair | NoPair:
    """The best pair for `demand`, or why there is none.

    `cached_blocks` maps a worker's epoch to the prompt blocks it probably holds.
    """
    fresh = [w for w in workers if w.epoch not in demand.excluded]
    choice = _choose(fresh, demand, cached_blocks, settings)
    if isinstance(choice, NoPair) and len(fresh) < len(workers):
        choice = _choose(workers, demand, cached_blocks, settings)
    return choice


def choose_decode(
    workers: Sequence[WorkerView], demand: Demand, compat_key: str, settings: PolicySettings
) -> WorkerView | None:
    """The best decode worker for KV of this compat key that lies elsewhere; None: there is none."""
    usable = _of_key(_usable(workers, Phase.DECODE, settings), compat_key)
    fresh = [w for w in usable if w.epoch not in demand.excluded]
    return min(fresh or usable, key=_decode_rank(demand), default=None)


def _choose(
    workers: Sequence[WorkerView],
    demand: Demand,
    cached_blocks: Mapping[str, int],
    settings: PolicySettings,
) -> Pair | NoPair:
    phases = _phases(demand, settings)
    usable = {phase: _usable(workers, phase, settings) for phase in phases}
    common = set.intersection(*({w.compat_key for w in usable[phase]} for phase in phases))
    if not common:
        return _why_none(workers, phases, usable, settings)
    ranks = {phase: _ranking(phase, demand, cached_blocks, settings) for phase in phases}
    pairs = [
        {phase: min(_of_key(usable[phase], key), key=ranks[phase]) for phase in phases}
        for key in sorted(common)
    ]
    best = min(pairs, key=lambda pair: [ranks[phase](pair[phase]) for phase in phases])
    return Pair(best.get(Phase.PREFILL), best.get(Phase.DECODE))


def _phases(demand: Demand, settings: PolicySettings) -> tuple[Phase, ...]:
    """The roles that have to take part; one token per choice needs no D."""
    if settings.combined:
        return (Phase.DECODE,)
    if demand.num_new_tokens <= 1:
        return (Phase.PREFILL,)
    return (Phase.PREFILL, Phase.DECODE)


def _usable(
    workers: Iterable[WorkerView], phase: Phase, settings: PolicySettings
) -> list[WorkerView]:
    return [
        w
        for w in workers
        if w.role is phase and w.load.ready and not _draining(w) and not _full(w, settings)
    ]


def _draining(worker: WorkerView) -> bool:
    return worker.draining or worker.load.draining


def _full(worker: WorkerView, settings: PolicySettings) -> bool:
    return worker.load.num_waiting + worker.assigned_sequences >= settings.max_num_waiting


def _of_key(workers: Iterable[WorkerView], compat_key: str) -> list[WorkerView]:
    return [w for w in workers if w.compat_key == compat_key]


Rank = Callable[[WorkerView], tuple[float, ...]]


def _ranking(
    phase: Phase, demand: Demand, cached_blocks: Mapping[str, int], settings: PolicySettings
) -> Rank:
    """The order of preference among workers of one role, least first."""

    def prompt_cost(worker: WorkerView) -> float:
        cached = min(cached_blocks.get(worker.epoch, 0) * worker.block_size, demand.num_tokens)
        return worker.prefill_tokens - settings.prefix_affinity_weight * cached

    def prefill_rank(worker: WorkerView) -> tuple[float, ...]:
        return (prompt_cost(worker), worker.num_sequences, worker.num_routed)

    decode_rank = _decode_rank(demand)

    def combined_rank(worker: WorkerView) -> tuple[float, ...]:
        # A running sequence slows every chunk of ours; it weighs as much as a block of prompt.
        slowed = worker.num_sequences * worker.block_size
        crowded, *rest = decode_rank(worker)
        return (crowded, prompt_cost(worker) + slowed, *rest)

    if phase is Phase.PREFILL:
        return prefill_rank
    return combined_rank if settings.combined else decode_rank


def _decode_rank(demand: Demand) -> Rank:
    """The order of preference among decode workers that compute no prompt."""

    def rank(worker: WorkerView) -> tuple[float, ...]:
        crowded = worker.free_blocks < demand.num_blocks(worker.block_size)
        return (crowded, worker.num_sequences, -worker.free_blocks, worker.num_routed)

    return rank


def _why_none(
    workers: Sequence[WorkerView],
    phases: Sequence[Phase],
    usable: Mapping[Phase, Sequence[WorkerView]],
    settings: PolicySettings,
) -> NoPair:
    """The reason of the first role nobody can play."""
    for phase in phases:
        if usable[phase]:
            continue
        ready = [w for w in workers if w.role is phase and w.load.ready]
        if not ready:
            return NoPair("no_worker", f"no {phase} worker is ready")
        if all(_draining(w) for w in ready):
            return NoPair("draining", f"every {phase} worker is draining")
        return NoPair("saturated", f"the queue of every {phase} worker is full")
    return NoPair(
        "no_worker",
        "no prefill worker fits a decode worker: their compat keys differ (in model, dtype or "
        "block size)",
    )
