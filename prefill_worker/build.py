"""Puts a prefill role on an engine."""

from __future__ import annotations

from core.config import SchedulerConfig
from engine.builder import Engine
from prefill_worker.role import KVSender, PrefillRole, WorkerIdentity
from prefill_worker.scheduler import PrefillScheduler


def build_prefill_role(
    engine: Engine,
    scheduler: SchedulerConfig,
    sender: KVSender,
    identity: WorkerIdentity,
    *,
    lease_s: float,
) -> PrefillRole:
    """The role with its scheduler; KV leaves through `sender`."""
    return PrefillRole(
        identity,
        engine.pool,
        PrefillScheduler(
            engine.pool,
            chunk_tokens=min(scheduler.prefill_chunk_tokens, scheduler.max_num_batched_tokens),
            max_num_seqs=scheduler.max_num_seqs,
            window=engine.window,
        ),
        sender,
        engine.limits,
        window=engine.window,
        eos_token_ids=engine.eos_token_ids,
        lease_s=lease_s,
    )
