"""The leader's side of a group's work: every rank is told first, then the leader does its share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.batch import StepInput
from engine.plan_channel import PlanSender
from engine.plan_message import CopyBlocks, Step
from engine.runner import ModelRunner
from engine.sample_row import SampleRow
from engine.sampler import Sampled
from kv_cache.storage import KVStorage


class GroupRunner:
    """An `Executor`, and the changes to stored KV, of all ranks. Raises WorkerLostError.

    What a transfer brought is unpacked here only: `BlocksArrived.others_unpack` tells the others.
    """

    def __init__(self, runner: ModelRunner, storage: KVStorage, plans: PlanSender) -> None:
        self._runner = runner
        self._storage = storage
        self._plans = plans

    def execute(self, step: StepInput, rows: list[SampleRow]) -> list[Sampled]:
        """Logits are complete on every rank; tokens are drawn here only."""
        with self._plans.step(Step(step)):
            return self._runner.execute(step, rows)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._plans.send(CopyBlocks(tuple(pairs)))
        self._storage.copy_blocks(pairs)

    def unpack(self, blocks: Sequence[int], staging: torch.Tensor) -> None:
        self._storage.unpack(blocks, staging)
