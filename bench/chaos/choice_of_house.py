"""Which house a run is about, with which model and settings."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.chaos.asks import Sizes
from bench.chaos.by_hand_house import ByHandHouse, HouseSettings
from bench.chaos.house import House
from bench.chaos.model import FIRST_TOKEN_ID, LAST_TOKEN_ID, write_tiny_model
from bench.chaos.plan import GROUP_PATIENCE_S
from bench.chaos.ray_house import RayHouse
from bench.progress import show_progress
from core.clock import MonotonicClock
from core.errors import ConfigError

HouseKind = Literal["by-hand", "ray"]

TINY = "tiny"
_SERVED_NAME = "chaos"
_SETTINGS = (
    f"model.served_model_name={_SERVED_NAME}",
    "model.max_model_len=1024",
    "router.max_attempts=12",  # one request may meet several faults
    "router.no_worker_timeout_s=10",
    "scheduler.prefill_chunk_tokens=64",
    "scheduler.max_num_batched_tokens=128",
    "scheduler.max_num_seqs=32",
    "cache.num_blocks=320",  # few enough that sequences wait and give way
    "parallel.num_threads=1",
    f"parallel.step_timeout_s={GROUP_PATIENCE_S}",
    "kv_transfer.verify=true",
    "kv_transfer.lease_s=10",
    "worker.drain_timeout_s=20",
)
_FEW_BLOCKS_A_MESSAGE = "kv_transfer.max_message_bytes=1048576"
"""For a real model's large blocks: links fill their staging before memory is noted, not after."""
_TINY_PACE = "step:delay=0.06:every=6"
"""A token each 10 ms or so: streams are long enough to be hit, and cores stay free."""


@dataclass(frozen=True, slots=True)
class HouseWanted:
    """What was asked for."""

    kind: HouseKind
    model: str
    redis_server: str
    scratch: Path
    """For what lasts as long as the run."""
    logs: Path
    seed: int
    overrides: tuple[str, ...]
    two_nodes: bool = False
    num_ranks: int = 1
    """Of every worker."""


def make_house(wanted: HouseWanted) -> tuple[House, str, Sizes]:
    """The house, not started yet, the name its model is served by, and what to ask it.

    Raises ConfigError without a redis-server where one is needed.
    """
    model: tuple[str, ...] = (f"model.model={wanted.model}", _FEW_BLOCKS_A_MESSAGE)
    sizes, pace = Sizes(1_000, 30_000, max_output=60), ""
    if wanted.model == TINY:
        path = write_tiny_model(wanted.scratch / "model")
        model = (f"model.model={path}", "model.dtype=float32")
        sizes, pace = Sizes(FIRST_TOKEN_ID, LAST_TOKEN_ID), _TINY_PACE
    settings = (*_SETTINGS, *model, *wanted.overrides)
    clock = MonotonicClock()
    if wanted.kind == "ray":
        ray = RayHouse(
            (*settings, f"faults.spec={pace}"),
            wanted.scratch,
            wanted.logs,
            clock,
            num_ranks=wanted.num_ranks,
            two_nodes=wanted.two_nodes,
        )
        return ray, _SERVED_NAME, sizes
    program = shutil.which(wanted.redis_server)
    if program is None:
        raise ConfigError(f"no program {wanted.redis_server!r}: name one with --redis-server")
    by_hand = HouseSettings(
        program,
        wanted.logs,
        settings,
        pace,
        seed=wanted.seed,
        two_nodes=wanted.two_nodes,
        num_ranks=wanted.num_ranks,
    )
    return ByHandHouse(by_hand, clock, show_progress), _SERVED_NAME, sizes
