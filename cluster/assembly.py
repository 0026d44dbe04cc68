"""Fills processes with what Tandem really runs; each imports its own part only."""

from __future__ import annotations

import asyncio
import importlib

from cluster.faulty_store import FaultyStore
from cluster.own_address import with_own_address
from cluster.shell import Makers, Router, Worker
from core.config import Config
from core.faults import make_faults
from core.request import Phase
from state.store import Store

_ROUTER_ID = "router"
"""What a router is called in rules of `faults.spec`."""


def real_makers() -> Makers:
    """Makes workers with engines, and the router."""
    return Makers(make_worker, make_router)


async def make_worker(config: Config, role: Phase, worker_id: str, store: Store) -> Worker:
    """A worker that holds nothing yet. Imports torch, which takes seconds, in a thread."""
    module = await asyncio.to_thread(importlib.import_module, "cluster.worker_shell")
    worker: Worker = module.WorkerShell(with_own_address(config), role, worker_id, store)
    return worker


async def make_router(config: Config, store: Store) -> Router:
    """A router with the model's tokenizer and template. Raises ConfigError."""
    from cluster.router_process import build_router, load_texts

    texts = await asyncio.to_thread(load_texts, config)
    faults = make_faults(config.faults.spec, seed=config.faults.seed, worker_id=_ROUTER_ID)
    return build_router(config, texts, store if faults is None else FaultyStore(store, faults))
