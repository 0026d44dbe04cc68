"""Builds the engine of a worker, or another rank of its group, from a configuration.

    every rank   weights > profile run > how many blocks fit all ranks > storage
    the leader   pool, sampler

The profile run is also the warm-up: after it, every code path of a step has run once. On GPUs it is
the largest step there can be. On CPUs, where that would take a second, it is one of a few rows, and
its memory is scaled up: all of it grows with the rows at most, so that this is never too little.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tandem_kernels import prefers_bfloat16, select_sampling

from core.compat import compat_key
from core.config import Config
from core.errors import ConfigError
from core.kv_spec import KVSpec, resolve_kv_dtype
from core.request import SamplingParams
from engine.compiled_sampler import CompiledSampler
from engine.intake import Limits
from engine.machine import (
    available_memory_bytes,
    mark_memory,
    num_threads,
    peak_memory_bytes,
    select_device,
)
from engine.runner import ModelRunner, RankRunner, profile_blocks, profile_step
from engine.sample_row import SampleRow
from engine.sampler import Sampler, TokenSampler
from kv_cache.block_pool import BlockPool
from kv_cache.first_touch import FirstTouch
from kv_cache.sizing import Demand, MemoryProfile, plan_blocks
from kv_cache.storage import KVStorage
from model.causal_lm import CausalLM
from model.dtype import resolve_dtype
from model.loader import load_model
from model.quantization.recipe import resolve_recipe
from model.tensor_parallel import TensorParallel
from text.card import ModelCard
from text.structure.compiler import GrammarCompiler
from text.structure.vocabulary import grammar_vocabulary
from text.tokenizer import load_tokenizer

_WARM_UP_DECODE = 8
_WARM_UP_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Engine:
    """What a role is attached to."""

    card: ModelCard
    spec: KVSpec
    limits: Limits
    storage: KVStorage
    pool: BlockPool
    runner: ModelRunner
    compat_key: str
    window: int | None
    eos_token_ids: tuple[int, ...]
    kv_heads: range
    """This rank's KV heads, by their numbers in the whole model."""
    device: torch.device
    grammars: GrammarCompiler


@dataclass(frozen=True, slots=True)
class Rank:
    """What a rank other than the leader computes with."""

    runner: RankRunner
    storage: KVStorage


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Weights in memory, and what is known by then."""

    card: ModelCard
    spec: KVSpec
    model: CausalLM
    arithmetic: str
    """Weights' recipe and the type that is computed in."""
    capacity_bytes: int
    weights_bytes: int
    resident_bytes: int
    """In use once the weights are there."""
    num_sharers: int


def build_engine(
    config: Config,
    card: ModelCard,
    *,
    num_sharers: int,
    progress: Callable[[str], None],
    tp: TensorParallel | None = None,
) -> Engine:
    """Loads and sizes everything for a worker's only rank, or for the leader of its group `tp`.

    `num_sharers` is how many ranks share this machine's cores and memory. Raises ConfigError and
    CapacityError, which say what to change; WorkerLostError if another rank fails meanwhile.
    """
    tp = tp or TensorParallel.single()
    loaded = _load(config, card, num_sharers=num_sharers, progress=progress, tp=tp)
    card, model, spec = loaded.card, loaded.model, loaded.spec
    storage = _make_storage(config, loaded, tp, progress)
    pool = BlockPool(
        storage.num_blocks,
        spec.block_size,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        max_pinned_blocks=int(config.cache.max_pinned_share * storage.num_blocks),
        on_first_use=FirstTouch(storage).taken if model.device.type == "cpu" else None,
    )
    return Engine(
        card=card,
        spec=spec,
        limits=Limits(
            max_model_len=card.max_model_len,
            vocab_size=card.vocab_size,
            num_blocks=storage.num_blocks,
            block_size=spec.block_size,
            max_num_waiting=config.scheduler.max_num_waiting,
        ),
        storage=storage,
        pool=pool,
        runner=_runner(card, model, storage),
        compat_key=compat_key(
            weights_digest=card.weights_digest,
            quantization=loaded.arithmetic,
            rope=card.rope_description,
            kv_spec=spec,
        ),
        window=model.window,
        eos_token_ids=card.eos_token_ids,
        kv_heads=model.kv_heads,
        device=model.device,
        grammars=GrammarCompiler(lambda: grammar_vocabulary(load_tokenizer(card), card.vocab_size)),
    )


def build_rank(
    config: Config,
    card: ModelCard,
    *,
    num_sharers: int,
    progress: Callable[[str], None],
    tp: TensorParallel,
) -> Rank:
    """Loads and sizes everything for a rank that follows a leader, which calls `build_engine` with
    the same settings. Raises as that does."""
    loaded = _load(config, card, num_sharers=num_sharers, progress=progress, tp=tp)
    storage = _make_storage(config, loaded, tp, progress)
    return Rank(RankRunner(loaded.model, storage, device=loaded.model.device), storage)


def _load(
    config: Config,
    card: ModelCard,
    *,
    num_sharers: int,
    progress: Callable[[str], None],
    tp: TensorParallel,
) -> _Loaded:
    # Positions beyond it need no angles, and LongRoPE's follow from it
    card = dataclasses.replace(card, max_model_len=model_len(config, card))
    device = select_device()
    torch.set_num_threads(num_threads(config.parallel, num_sharers))
    capacity = available_memory_bytes(device)
    dtype = resolve_dtype(
        config.model.dtype, card, device, prefers_bfloat16=prefers_bfloat16(device)
    )
    kv_dtype = resolve_kv_dtype(config.cache.kv_cache_dtype, str(dtype).removeprefix("torch."))
    before = mark_memory(device)
    progress("loading weights")
    recipe = resolve_recipe(config.model, card)
    model = load_model(card, dtype=dtype, device=device, tp=tp, recipe=recipe)
    resident = mark_memory(device)
    return _Loaded(
        card=card,
        spec=card.kv_spec(config.cache.block_size, kv_dtype),
        model=model,
        arithmetic=f"{recipe.name} in {dtype}",
        capacity_bytes=capacity,
        weights_bytes=resident - before,
        resident_bytes=resident,
        num_sharers=num_sharers,
    )


def _make_storage(
    config: Config, loaded: _Loaded, tp: TensorParallel, progress: Callable[[str], None]
) -> KVStorage:
    """Warms up, and makes room for as many blocks as every rank of the group has memory for."""
    card, spec, model, device = loaded.card, loaded.spec, loaded.model, loaded.model.device
    progress("warming up")
    scale = _profile(config, card, spec, model, leads=tp.rank == 0)
    memory = MemoryProfile(
        device_type="cuda" if device.type == "cuda" else "cpu",
        capacity_bytes=loaded.capacity_bytes,
        weights_bytes=loaded.weights_bytes,
        activation_bytes=round(scale * (peak_memory_bytes(device) - loaded.resident_bytes)),
        num_sharers=loaded.num_sharers if device.type == "cpu" else 1,
    )
    demand = Demand(
        block_size=spec.block_size,
        bytes_per_block=spec.bytes_per_block * len(model.kv_heads) // card.num_kv_heads,
        max_model_len=card.max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
    )
    num_blocks = tp.smallest(plan_blocks(config.cache, demand, memory), device)
    progress(f"{num_blocks} KV blocks of {spec.block_size} tokens")
    return KVStorage(spec, num_blocks, device=device, num_kv_heads_local=len(model.kv_heads))


def model_len(config: Config, card: ModelCard) -> int:
    """The one limit of prompt plus output: the setting, at most what the model was trained for."""
    wanted = config.model.max_model_len
    if wanted is None:
        return card.max_model_len
    if wanted > card.max_model_len:
        raise ConfigError(
            f"model.max_model_len is {wanted}, but {card.name} was trained for "
            f"{card.max_model_len} tokens"
        )
    return wanted


def _profile(
    config: Config, card: ModelCard, spec: KVSpec, model: CausalLM, *, leads: bool
) -> float:
    """Runs a step on a storage of its own; the rank that `leads` samples in the costliest way.

    Returns how many times its memory the largest step takes at most.
    """
    most_decode = config.scheduler.max_num_seqs
    longest = min(
        config.scheduler.prefill_chunk_tokens,
        config.scheduler.max_num_batched_tokens - most_decode,
    )
    longest = max(2, min(longest, model.max_positions))
    on_cpu = model.device.type == "cpu"
    num_decode = min(most_decode, _WARM_UP_DECODE) if on_cpu else most_decode
    chunk = min(longest, _WARM_UP_CHUNK) if on_cpu else longest
    num_blocks = profile_blocks(num_decode, chunk, spec.block_size)
    scratch = KVStorage(
        spec, num_blocks, device=model.device, num_kv_heads_local=len(model.kv_heads)
    )
    step = profile_step(num_decode, chunk, spec.block_size)
    if leads:
        params = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9, logprobs=5)
        rows = [SampleRow(params, 0, 0, None, row, ()) for row in range(num_decode + 1)]
        _runner(card, model, scratch).execute(step, rows)
    else:
        RankRunner(model, scratch, device=model.device).compute(step)
    return max((most_decode + longest) / (num_decode + chunk), (most_decode + 1) / (num_decode + 1))


def _runner(card: ModelCard, model: CausalLM, storage: KVStorage) -> ModelRunner:
    kernel = select_sampling(model.device)
    sampler: TokenSampler = (
        Sampler(card.vocab_size) if kernel is None else CompiledSampler(card.vocab_size, kernel)
    )
    return ModelRunner(model, storage, sampler, device=model.device)
