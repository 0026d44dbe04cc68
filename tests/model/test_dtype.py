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
    ("configured", "device", "prefers_bfloat16", "expected"),
    [
        ("auto", CPU, True, torch.bfloat16),
        ("auto", CPU, False, torch.float32),
        ("auto", CUDA, True, torch.float16),
        ("float32", CPU, True, torch.float32),
        ("float32", CUDA, True, torch.float32),
        ("bfloat16", CPU, False, torch.bfloat16),
        ("float16", CUDA, True, torch.float16),
    ],
)
def test_auto_is_what_cpus_compute_fast_and_the_checkpoints_own_on_gpus(
    tmp_path: Path,
    configured: Literal["auto", "float32", "bfloat16", "float16"],
    device: torch.device,
    prefers_bfloat16: bool,
    expected: torch.dtype,
) -> None:
    card = fakes_tiny_model.llama(tmp_path, dtype=torch.float16).card
    found = resolve_dtype(configured, card, device, prefers_bfloat16=prefers_bfloat16)
    assert found == expected


def test_float16_on_a_cpu_is_refused_with_the_reason(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path).card
    with pytest.raises(ConfigError, match=r"float16 .* slower .* float32 or bfloat16"):
        resolve_dtype("float16", card, CPU, prefers_bfloat16=True)
