"""Tables of cosines and sines for every position, with each way of scaling RoPE to long contexts.

    none      theta^(-2i/r)                          Su et al. 2021, RoFormer
    linear    divided by the factor                  Chen et al. 2023, Position Interpolation
    dynamic   theta grows with the length            "NTK-aware" scaling
    yarn      slow pairs are interpolated            Peng et al. 2023, YaRN
    llama3    the same with other bounds             Llama 3.1
    longrope  searched factors, short and long       Ding et al. 2024, LongRoPE

`dynamic` and `longrope` depend on a sequence's length, but a token's KV must depend on nothing that
comes after it. With `dynamic`, a position's angles are those of a sequence that ends there: prompts
within the original length are not scaled, and generating token by token equals the usual
implementations. With `longrope`, whose two sets of angles don't fit each other, a model serves with
one: the long factors where it may reach beyond the original length, else the short ones.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from text.rope_config import RopeConfig


def cos_sin_table(
    rope: RopeConfig, rotary_dim: int, num_positions: int, device: torch.device
) -> Tensor:
    """float32 [num_positions, rotary_dim]: cosines in the first half, sines in the second."""
    positions = torch.arange(num_positions, dtype=torch.float32).unsqueeze(1)  # [P, 1]
    angles = positions * _inverse_frequencies(rope, rotary_dim, positions)  # [P, r/2]
    table = torch.cat((angles.cos(), angles.sin()), dim=1) * attention_factor(rope)
    return table.to(device)


def attention_factor(rope: RopeConfig) -> float:
    """What cosines and sines are multiplied with, to keep attention's temperature."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.scaling == "yarn":
        if rope.mscale and rope.mscale_all_dim:
            return _yarn_scale(rope.factor, rope.mscale) / _yarn_scale(
                rope.factor, rope.mscale_all_dim
            )
        return _yarn_scale(rope.factor, 1.0)
    if rope.scaling == "longrope" and rope.factor > 1.0:
        return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_position))
    return 1.0


def _inverse_frequencies(rope: RopeConfig, rotary_dim: int, positions: Tensor) -> Tensor:
    """Radians per token. [r/2], or [P, r/2] where they depend on the position."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim  # [r/2]
    plain = 1.0 / rope.theta**exponents
    match rope.scaling:
        case "none":
            scaled = plain
        case "linear":
            scaled = plain / rope.factor
        case "dynamic":
            scaled = _dynamic(rope, rotary_dim, exponents, positions)
        case "yarn":
            scaled = _yarn(rope, rotary_dim, plain)
        case "llama3":
            scaled = _llama3(rope, plain)
        case "longrope":
            scaled = _longrope(rope, plain, len(positions))
    if rope.frequency_factors:
        scaled = scaled / torch.tensor(rope.frequency_factors)
    return scaled


def _dynamic(rope: RopeConfig, rotary_dim: int, exponents: Tensor, positions: Tensor) -> Tensor:
    lengths = (positions + 1).clamp(min=rope.original_max_position)  # [P, 1]
    growth = rope.factor * lengths / rope.original_max_position - (rope.factor - 1)
    base = rope.theta * growth ** (rotary_dim / (rotary_dim - 2))
    return 1.0 / base**exponents


def _yarn(rope: RopeConfig, rotary_dim: int, plain: Tensor) -> Tensor:
    """Pairs that turn often within the original length stay; slow ones are interpolated."""
    low = _yarn_pair(rope, rotary_dim, rope.beta_fast)
    high = _yarn_pair(rope, rotary_dim, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def _yarn_pair(rope: RopeConfig, rotary_dim: int, num_rotations: float) -> float:
    """The pair that turns `num_rotations` times within the original length."""
    ratio = rope.original_max_position / (num_rotations * 2 * math.pi)
    return rotary_dim * math.log(ratio) / (2 * math.log(rope.theta))


def _yarn_scale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _llama3(rope: RopeConfig, plain: Tensor) -> Tensor:
    """Long waves are interpolated, short ones kept, those between blended."""
    turns = rope.original_max_position * plain / (2 * math.pi)  # [r/2], within the original length
    width = rope.high_freq_factor - rope.low_freq_factor
    keep = ((turns - rope.low_freq_factor) / width).clamp(0, 1)
    return plain / rope.factor * (1 - keep) + plain * keep


def _longrope(rope: RopeConfig, plain: Tensor, num_positions: int) -> Tensor:
    beyond = num_positions > rope.original_max_position
    return plain / torch.tensor(rope.long_factor if beyond else rope.short_factor)
