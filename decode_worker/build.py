"""Puts a decode role on an engine."""

from __future__ import annotations

from core.config import SchedulerConfig
from decode_worker.ports import KVOps, KVReceiver
from decode_worker.role import DecodeRole
from decode_worker.scheduler import DecodeLimits, DecodeScheduler
from engine.builder import Engine
from engine.kv_lender import KVLender


def build_decode_role(
    engine: Engine,
    scheduler: SchedulerConfig,
    receiver: KVReceiver,
    kv_ops: KVOps,
    lender: KVLender | None = None,
) -> DecodeRole:
    """The role with its scheduler; KV arrives through `receiver`, `kv_ops` change what is stored.

    `kv_ops` is the engine's storage, or what stands before all ranks of its group. Through `lender`
    KV leaves for other decode workers, if there may be any.
    """
    limits = DecodeLimits(
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        chunk_tokens=scheduler.prefill_chunk_tokens,
        growth_tokens=scheduler.admission_growth_tokens,
        window=engine.window,
    )
    return DecodeRole(
        engine.pool,
        DecodeScheduler(engine.pool, limits),
        receiver,
        kv_ops,
        engine.limits,
        compat_key=engine.compat_key,
        eos_token_ids=engine.eos_token_ids,
        lender=lender,
    )
