"""Builds one rank of a model from its checkpoint.

card > open checkpoint > every tensor there, of the right shape? > read this rank's parts > model
"""

from __future__ import annotations

import math

import torch
from tandem_kernels import Kernels, select

from model.causal_lm import CausalLM
from model.check_tensors import check_tensors
from model.checkpoint import Checkpoint, open_checkpoint
from model.decoder_builder import DecoderBuilder
from model.head_partition import HeadPartition
from model.layer_weights import FloatWeights, LayerWeights
from model.quantization.calibrated_checkpoint import CalibratedCheckpoint
from model.quantization.quantized_weights import QuantizedWeights
from model.quantization.recipe import FLOATS, Recipe
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
    recipe: Recipe = FLOATS,
    kernels: Kernels | None = None,
    progress: Progress = silent,
) -> CausalLM:
    """Reads this rank's share of the weights onto `device`, to compute in `dtype`.

    `recipe` says which weights become whole numbers. `kernels` unset: the fastest there are.
    `progress` counts the rank's bytes in memory. Raises ConfigError when the checkpoint lacks
    tensors, holds unknown ones or wrong shapes, or when `tp` has more ranks than the model allows.
    """
    heads = HeadPartition(card.num_heads, card.num_kv_heads, tp.size).rank(tp.rank)
    kernels = kernels or select(device, dtype)
    with _open(card, recipe) as checkpoint:
        check_tensors(card, checkpoint.shapes)
        weights = RankWeights(
            checkpoint,
            dtype=dtype,
            device=device,
            progress=progress,
            total_bytes=_rank_bytes(card, dtype, tp),
            head_dim=card.head_dim,
        )
        family = family_named(card.architecture)
        layers: LayerWeights = FloatWeights(weights, kernels, family)
        if recipe.scheme != "none":
            layers = QuantizedWeights(checkpoint, weights, kernels, family, recipe, device)
        decoder = DecoderBuilder(card, layers, heads, tp).decoder(dtype, device)
    return CausalLM(decoder, kernels, tp, vocab_size=card.vocab_size, kv_heads=heads.kv)


def _open(card: ModelCard, recipe: Recipe) -> Checkpoint:
    checkpoint = open_checkpoint(card)
    if recipe.calibration is None:
        return checkpoint
    return CalibratedCheckpoint(checkpoint, recipe.calibration, card)


def _rank_bytes(card: ModelCard, dtype: torch.dtype, tp: TensorParallel) -> int:
    """About what this rank will hold: for a progress bar, not for planning memory."""
    num_elements = sum(math.prod(shape) for shape in decoder_tensors(card).values())
    return num_elements * dtype.itemsize // tp.size
