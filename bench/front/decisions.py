"""How long the router thinks: one choice of a pair, prefixes looked up and remembered."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bench.stats import median
from core.clock import Clock
from core.load import LoadReport
from core.request import Phase
from kv_cache.block_hash import block_hashes, root_hash
from router.fleet.policy import Demand, NoPair, PolicySettings, WorkerView, choose_pair
from router.fleet.prefix_map import PrefixMap

_BLOCK_SIZE = 16
_REMEMBERED = 64
"""Prompts that earlier decisions left in the prefix map."""


def decision_s(num_workers: int, prompt_len: int, clock: Clock, *, rounds: int = 50) -> float:
    """Median seconds of one decision among so many workers of each role."""
    randomness = random.Random(0)
    workers = [*_workers(Phase.PREFILL, num_workers), *_workers(Phase.DECODE, num_workers)]
    prefixes = PrefixMap(100_000)
    prompts = [
        [randomness.randrange(50_000) for _ in range(prompt_len)] for _ in range(_REMEMBERED)
    ]
    for prompt, worker in zip(prompts, workers * _REMEMBERED, strict=False):
        prefixes.record(_hashes(prompt), worker.epoch)
    demand, settings = Demand(prompt_len, 128), PolicySettings()
    taken: list[float] = []
    for index in range(rounds):
        began = clock.now()
        hashes = _hashes(prompts[index % _REMEMBERED])
        pair = choose_pair(workers, demand, prefixes.matches(hashes), settings)
        assert not isinstance(pair, NoPair) and pair.prefill is not None
        prefixes.record(hashes, pair.prefill.epoch)
        taken.append(clock.now() - began)
    return median(taken)


def _hashes(prompt: Sequence[int]) -> list[bytes]:
    return block_hashes(root_hash("key", "", ""), prompt, _BLOCK_SIZE)


def _workers(role: Phase, number: int) -> list[WorkerView]:
    load = LoadReport(num_running=3, kv_blocks={"free": 5_000, "running": 5_000})
    return [
        WorkerView(f"{role}-{i}", f"{role}-epoch-{i}", role, "key", _BLOCK_SIZE, load)
        for i in range(number)
    ]
