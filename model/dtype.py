"""In which type a model computes and stores its KV."""

from __future__ import annotations

from typing import Literal

import torch

from core.errors import ConfigError
from text.card import ModelCard

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def resolve_dtype(
    configured: Literal["auto", "float32", "bfloat16", "float16"],
    card: ModelCard,
    device: torch.device,
    *,
    prefers_bfloat16: bool,
) -> torch.dtype:
    """The type to compute in. `auto`: on CPUs bfloat16 where they compute it fast and float32
    elsewhere, on other devices the checkpoint's own.

    Raises ConfigError for float16 on a CPU.
    """
    if configured == "auto":
        if device.type != "cpu":
            return DTYPES[card.dtype]
        return torch.bfloat16 if prefers_bfloat16 else torch.float32
    if configured == "float16" and device.type == "cpu":
        raise ConfigError(
            "dtype float16 is refused on CPUs, which compute it some 400 times slower than "
            "bfloat16; choose float32 or bfloat16"
        )
    return DTYPES[configured]
