"""The type a model computes in, by setting and device."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import fakes_tiny_model
import pytest
import torch

from core.errors import ConfigError
from model.dtype import resolve_dtype

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("configured", "device", "expected"),
    [
        ("auto", CPU, torch.float32),
        ("auto", CUDA, torch.bfloat16),
        ("float32", CUDA, torch.float32),
        ("bfloat16", CPU, torch.bfloat16),
        ("float16", CUDA, torch.float16),
    ],
)
def test_auto_is_float32_on_cpus_and_the_checkpoints_own_on_gpus(
    tmp_path: Path,
    configured: Literal["auto", "float32", "bfloat16", "float16"],
    device: torch.device,
    expected: torch.dtype,
) -> None:
    model = fakes_tiny_model.llama(tmp_path, dtype=torch.bfloat16)
    assert resolve_dtype(configured, model.card, device) == expected


def test_float16_on_a_cpu_is_refused_with_the_reason(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path).card
    with pytest.raises(ConfigError, match=r"float16 .* slower .* float32 or bfloat16"):
        resolve_dtype("float16", card, CPU)
