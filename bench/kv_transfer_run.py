"""Measures pulls between two processes, and the raw loop beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from bench.kv_transfer import (
    LINK_KINDS,
    KvTransferReport,
    LinkKind,
    SetupReport,
    TransferPlan,
    TransferPoint,
    TransferSample,
    WireReport,
    transfer_point,
)
from bench.kv_transfer_peers import (
    HOST,
    PATIENCE_S,
    DecodeSide,
    PeerSettings,
    PrefillProcess,
)
from bench.kv_transfer_raw import Messages, RawLink
from bench.progress import Progress
from bench.stats import median
from core.clock import Clock
from core.config import TransferConfig
from core.errors import ConfigError
from core.kv_spec import KVGroup, KVSpec
from kv_transfer.layout import blocks_per_message
from kv_transfer.parts import PART_BYTES
from text.card import ModelCard

SPEC = KVSpec((KVGroup(num_layers=4, num_kv_heads=4, head_dim=64),), 16, "bfloat16")
"""Blocks of 64 KiB, so that the smallest transfer is one of them."""
_WARMUP_RUNS = 2
_SETUP_REPEATS = 15
_DTYPES = ("bfloat16", "int8", "fp8")


def measure_transfers(
    plan: TransferPlan, card: ModelCard, num_tokens: int, clock: Clock, progress: Progress
) -> KvTransferReport:
    """Everything; the bytes on the wire are of a prompt of the card's model.

    Raises ConfigError for sizes that are not whole blocks, TransferError if a peer fails.
    """
    for size in plan.sizes_bytes:
        if size % SPEC.bytes_per_block:
            raise ConfigError(f"{size} bytes are not whole blocks of {SPEC.bytes_per_block}")
    num_blocks = max(plan.sizes_bytes) // SPEC.bytes_per_block
    settings = _settings(plan, SPEC, num_blocks)
    with contextlib.ExitStack() as stack:
        p = stack.enter_context(PrefillProcess(settings))
        sides = {kind: stack.enter_context(DecodeSide(settings, kind)) for kind in LINK_KINDS}
        points = _Bench(plan, p, sides, clock).points(progress)
        progress("setting up links")
        setup = {kind: _setup(p, d, clock) for kind, d in sides.items()}
    bytes_by_dtype = {}
    for dtype in _DTYPES:
        progress(f"bytes on the wire, {dtype}")
        bytes_by_dtype[dtype] = _wire_bytes(plan, card, dtype, num_tokens)
    return KvTransferReport(plan, points, setup, WireReport(num_tokens, bytes_by_dtype))


class _Bench:
    """A P and a D in two processes, D once for each kind of link; a raw link beside them."""

    def __init__(
        self,
        plan: TransferPlan,
        p: PrefillProcess,
        sides: Mapping[LinkKind, DecodeSide],
        clock: Clock,
    ) -> None:
        self._plan = plan
        self._p, self._sides = p, sides
        self._clock = clock
        self._raw: RawLink | None = None
        per_message = blocks_per_message(plan.max_message_bytes, SPEC.bytes_per_block)
        self._message_bytes = per_message * SPEC.bytes_per_block
        self._part_bytes = min(self._message_bytes, PART_BYTES)

    def points(self, progress: Progress) -> tuple[TransferPoint, ...]:
        samples: Mapping[int, list[TransferSample]] = {s: [] for s in self._plan.sizes_bytes}
        for run in range(-_WARMUP_RUNS, self._plan.repeats):
            progress("warming up" if run < 0 else f"run {run + 1} of {self._plan.repeats}")
            for size, taken in samples.items():
                sample = self._sample(size, run)
                if run >= 0:
                    taken.append(sample)
        return tuple(transfer_point(size, taken) for size, taken in samples.items())

    def _sample(self, size: int, run: int) -> TransferSample:
        """The kinds of links take turns in being first, which is no advantage."""
        num_slots = self._plan.max_inflight_messages
        num_parts = num_slots * self._message_bytes // self._part_bytes
        raw_s = self._raw_s(Messages(size, self._message_bytes, num_slots))
        parts_s = self._raw_s(Messages(size, self._part_bytes, num_parts))
        first = run % len(LINK_KINDS)
        in_turn = (*LINK_KINDS[first:], *LINK_KINDS[:first])
        pulls_s = {kind: self._pull_s(self._sides[kind], size) for kind in in_turn}
        return TransferSample(raw_s, parts_s, pulls_s)

    def _pull_s(self, d: DecodeSide, size: int) -> float:
        handoff = self._p.offer(d.kind, size // SPEC.bytes_per_block)
        started = self._clock.now()
        d.pull(handoff)
        return self._clock.now() - started

    def _raw_s(self, messages: Messages) -> float:
        self._p.say(messages)
        if self._raw is None:
            self._raw = RawLink(HOST, self._p.address.store_port, 1, timeout_s=PATIENCE_S)
        return self._raw.receive(messages)


def _setup(p: PrefillProcess, d: DecodeSide, clock: Clock) -> SetupReport:
    def pull_s() -> float:
        handoff = p.offer(d.kind, 1)
        started = clock.now()
        d.pull(handoff)
        return clock.now() - started

    first, later = [], []
    for _ in range(_SETUP_REPEATS):
        d.forget_links()
        first.append(pull_s())
        later.append(pull_s())
    return SetupReport(median(first), median(later), _SETUP_REPEATS)


def _wire_bytes(plan: TransferPlan, card: ModelCard, dtype: str, num_tokens: int) -> int:
    spec = card.kv_spec(SPEC.block_size, dtype)
    num_blocks = spec.num_blocks(num_tokens)
    settings = _settings(plan, spec, num_blocks)
    with PrefillProcess(settings) as p, DecodeSide(settings, "gloo") as d:
        d.pull(p.offer(d.kind, num_blocks))
        return d.stats.totals().num_bytes


def _settings(plan: TransferPlan, spec: KVSpec, num_blocks: int) -> PeerSettings:
    transfer = TransferConfig(
        max_message_bytes=plan.max_message_bytes,
        max_inflight_messages=plan.max_inflight_messages,
        timeout_s=PATIENCE_S,
    )
    return PeerSettings(spec, num_blocks, transfer, plan.num_threads)
