"""Rotary position embedding: how positions turn into angles, before any tensor exists."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

RopeScaling = Literal["none", "linear", "dynamic", "yarn", "llama3", "longrope"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base frequencies and their scaling for contexts longer than the first training's.

    Angles start from `theta ** (-2i / head_dim)`; `frequency_factors` (head_dim / 2 values, from
    GGUF's `rope_freqs.weight`) divide them when present, whatever the scaling. Fields after
    `original_max_position` belong to single scalings and keep their defaults in the others:
    `low_freq_factor`/`high_freq_factor` llama3; `beta_*`, `mscale*`, `truncate` yarn;
    `short_factor`/`long_factor` (head_dim / 2 values each) longrope. `attention_factor` multiplies
    cosines and sines (yarn, longrope); None means what the method's paper derives from `factor`.
    """

    theta: float = 10000.0
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_max_position: int = 0
    """Longest position before scaling; `dynamic` scales only beyond it."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    frequency_factors: tuple[float, ...] = ()

    @property
    def description(self) -> str:
        """All of it in one canonical line: equal lines, equal angles."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)
