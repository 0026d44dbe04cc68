"""Builds the engine of one rank from a configuration: model, sizes, storage, pool, runner.

    weights > profile run > how many blocks fit > storage and pool

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
from engine.runner import ModelRunner, profile_blocks, profile_step
from engine.sample_row import SampleRow
from engine.sampler import Sampler, TokenSampler
from kv_cache.block_pool import BlockPool
from kv_cache.sizing import Demand, MemoryProfile, plan_blocks
from kv_cache.storage import KVStorage
from model.causal_lm import CausalLM
from model.dtype import resolve_dtype
from model.loader import load_model
from model.quantization.recipe import resolve_recipe
from model.tensor_parallel import TensorParallel
from text.card import ModelCard

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


def build_engine(
    config: Config,
    card: ModelCard,
    *,
    num_sharers: int,
    progress: Callable[[str], None],
) -> Engine:
    """Loads and sizes everything for one rank.

    `num_sharers` is how many ranks share this machine's cores and memory. Raises ConfigError and
    CapacityError, which say what to change.
    """
    # Positions beyond it need no angles, and LongRoPE's follow from it
    card = dataclasses.replace(card, max_model_len=model_len(config, card))
    device = select_device()
    torch.set_num_threads(num_threads(config.parallel, num_sharers))
    capacity = available_memory_bytes(device)
    dtype = resolve_dtype(
        config.model.dtype, card, device, prefers_bfloat16=prefers_bfloat16(device)
    )
    kv_dtype = resolve_kv_dtype(config.cache.kv_cache_dtype, str(dtype).removeprefix("torch."))
    spec = card.kv_spec(config.cache.block_size, kv_dtype)
    before = mark_memory(device)
    progress("loading weights")
    recipe = resolve_recipe(config.model, card)
    model = load_model(card, dtype=dtype, device=device, tp=TensorParallel.single(), recipe=recipe)
    loaded = mark_memory(device)
    progress("warming up")
    scale = _profile(config, card, spec, model)
    memory = MemoryProfile(
        device_type="cuda" if device.type == "cuda" else "cpu",
        capacity_bytes=capacity,
        weights_bytes=loaded - before,
        activation_bytes=round(scale * (peak_memory_bytes(device) - loaded)),
        num_sharers=num_sharers if device.type == "cpu" else 1,
    )
    demand = Demand(
        block_size=spec.block_size,
        bytes_per_block=spec.bytes_per_block,
        max_model_len=card.max_model_len,
        max_num_seqs=config.scheduler.max_num_seqs,
    )
    num_blocks = plan_blocks(config.cache, demand, memory)
    progress(f"{num_blocks} KV blocks of {spec.block_size} tokens")
    storage = KVStorage(spec, num_blocks, device=device, num_kv_heads_local=len(model.kv_heads))
    pool = BlockPool(
        num_blocks, spec.block_size, enable_prefix_caching=config.cache.enable_prefix_caching
    )
    return Engine(
        card=card,
        spec=spec,
        limits=Limits(
            max_model_len=card.max_model_len,
            vocab_size=card.vocab_size,
            num_blocks=num_blocks,
            block_size=spec.block_size,
            max_num_waiting=config.scheduler.max_num_waiting,
        ),
        storage=storage,
        pool=pool,
        runner=_runner(card, model, storage),
        compat_key=compat_key(
            weights_digest=card.weights_digest,
            quantization=f"{recipe.name} in {dtype}",
            rope=card.rope_description,
            kv_spec=spec,
        ),
        window=model.window,
        eos_token_ids=card.eos_token_ids,
        kv_heads=model.kv_heads,
        device=device,
    )


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


def _profile(config: Config, card: ModelCard, spec: KVSpec, model: CausalLM) -> float:
    """Runs a step with the costliest sampling on a storage of its own.

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
    params = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9, logprobs=5)
    rows = [SampleRow(params, 0, 0, None, row, ()) for row in range(num_decode + 1)]
    step = profile_step(num_decode, chunk, spec.block_size)
    _runner(card, model, scratch).execute(step, rows)
    return max((most_decode + longest) / (num_decode + chunk), (most_decode + 1) / (num_decode + 1))


def _runner(card: ModelCard, model: CausalLM, storage: KVStorage) -> ModelRunner:
    kernel = select_sampling(model.device)
    sampler: TokenSampler = (
        Sampler(card.vocab_size) if kernel is None else CompiledSampler(card.vocab_size, kernel)
    )
    return ModelRunner(model, storage, sampler, device=model.device)
