"""Puts a prefill role on an engine."""

from __future__ import annotations

from core.config import SchedulerConfig
from engine.builder import Engine
from engine.kv_lender import KVLender
from prefill_worker.role import PrefillRole
from prefill_worker.scheduler import PrefillScheduler


def build_prefill_role(engine: Engine, scheduler: SchedulerConfig, lender: KVLender) -> PrefillRole:
    """The role with its scheduler; KV leaves through `lender`."""
    return PrefillRole(
        engine.pool,
        PrefillScheduler(
            engine.pool,
            chunk_tokens=min(scheduler.prefill_chunk_tokens, scheduler.max_num_batched_tokens),
            max_num_seqs=scheduler.max_num_seqs,
            window=engine.window,
        ),
        lender,
        engine.limits,
        compat_key=engine.compat_key,
        eos_token_ids=engine.eos_token_ids,
    )
