"""Builds one rank of a model from its checkpoint.

card > open checkpoint > every tensor there, of the right shape? > read this rank's parts > model
"""

from __future__ import annotations

import math

import torch
from tandem_kernels import select

from model.causal_lm import CausalLM
from model.check_tensors import check_tensors
from model.checkpoint import open_checkpoint
from model.decoder_builder import DecoderBuilder
from model.head_partition import HeadPartition
from model.layer_weights import FloatWeights
from model.rank_weights import RankWeights
from model.tensor_parallel import TensorParallel
from text.card import ModelCard
from text.decoder_tensors import decoder_tensors
from text.families.registry import family_named
from text.progress import Progress, silent


def load_model(
    card: ModelCard,
    *,
    dtype: torch.dtype,
    device: torch.device,
    tp: TensorParallel,
    progress: Progress = silent,
) -> CausalLM:
    """Reads this rank's share of the weights, as `dtype`, onto `device`.

    `progress` counts the rank's bytes in memory. Raises ConfigError when the checkpoint lacks
    tensors, holds unknown ones or wrong shapes, or when `tp` has more ranks than the model allows.
    """
    heads = HeadPartition(card.num_heads, card.num_kv_heads, tp.size).rank(tp.rank)
    kernels = select(device, dtype)
    with open_checkpoint(card) as checkpoint:
        check_tensors(card, checkpoint.shapes)
        weights = RankWeights(
            checkpoint,
            dtype=dtype,
            device=device,
            progress=progress,
            total_bytes=_rank_bytes(card, dtype, tp),
        )
        layers = FloatWeights(weights, kernels, family_named(card.architecture))
        decoder = DecoderBuilder(card, layers, heads, tp).decoder(dtype, device)
    return CausalLM(decoder, kernels, tp, vocab_size=card.vocab_size, kv_heads=heads.kv)


def _rank_bytes(card: ModelCard, dtype: torch.dtype, tp: TensorParallel) -> int:
    """About what this rank will hold: for a progress bar, not for planning memory."""
    num_elements = sum(math.prod(shape) for shape in decoder_tensors(card).values())
    return num_elements * dtype.itemsize // tp.size
