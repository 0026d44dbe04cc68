"""Angles of every scaling, against the frequencies transformers computes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from model.rope import attention_factor, cos_sin_table
from text.rope_config import RopeConfig, RopeScaling

CPU = torch.device("cpu")
HEAD_DIM, ORIGINAL, LENGTH = 32, 64, 512
SHORT, LONG = [1.0 + i / 40 for i in range(16)], [1.0 + i for i in range(16)]


def oracle(length: int, rope_type: str, max_position: int, **parameters: Any) -> Tensor:
    """Cosines and sines, [length, d], of a whole sequence of `length` tokens."""
    config = LlamaConfig(
        hidden_size=HEAD_DIM * 2,
        num_attention_heads=2,
        max_position_embeddings=max_position,
        rope_parameters={"rope_type": rope_type, "rope_theta": 1e4, **parameters},
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(length).unsqueeze(0))
    return torch.cat((cos[0, :, : HEAD_DIM // 2], sin[0, :, : HEAD_DIM // 2]), dim=1)


def table(length: int, scaling: RopeScaling, **settings: Any) -> Tensor:
    rope = RopeConfig(theta=1e4, scaling=scaling, original_max_position=ORIGINAL, **settings)
    return cos_sin_table(rope, HEAD_DIM, length, CPU)


BOUNDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("scaling", "hf_name", "settings"),
    [
        ("none", "default", {}),
        ("linear", "linear", {"factor": 4.0}),
        ("yarn", "yarn", {"factor": 8.0}),
        ("yarn", "yarn", {"factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0}),
        ("yarn", "yarn", {"factor": 8.0, "truncate": False}),
        ("yarn", "yarn", {"factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.5}),
        ("yarn", "yarn", {"factor": 8.0, "attention_factor": 1.5}),
        ("llama3", "llama3", {"factor": 8.0, **BOUNDS}),
    ],
)
def test_angles_equal_transformers(
    scaling: RopeScaling, hf_name: str, settings: dict[str, Any]
) -> None:
    parameters = dict(settings)
    if scaling in ("yarn", "llama3"):
        parameters["original_max_position_embeddings"] = ORIGINAL
    expected = oracle(LENGTH, hf_name, LENGTH, **parameters)
    torch.testing.assert_close(table(LENGTH, scaling, **settings), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("length", [1, ORIGINAL, ORIGINAL + 1, 200, LENGTH])
def test_dynamic_angles_are_those_of_a_sequence_that_ends_there(length: int) -> None:
    expected = oracle(length, "dynamic", ORIGINAL, factor=4.0)[-1]
    actual = table(LENGTH, "dynamic", factor=4.0)[length - 1]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("length", [ORIGINAL, ORIGINAL + 1, LENGTH])
def test_longrope_takes_the_long_factors_where_the_model_reaches_beyond(length: int) -> None:
    factors = {"short_factor": SHORT, "long_factor": LONG, "factor": 8.0}
    longrope = {**factors, "original_max_position_embeddings": ORIGINAL}
    expected = oracle(length, "longrope", LENGTH, **longrope)
    settings = {"short_factor": tuple(SHORT), "long_factor": tuple(LONG), "factor": 8.0}
    actual = table(length, "longrope", **settings)
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0)


def test_frequency_factors_divide_the_frequencies() -> None:
    rope = RopeConfig(theta=100.0, frequency_factors=tuple(float(i + 1) for i in range(16)))
    plain = dataclasses.replace(rope, frequency_factors=())
    assert cos_sin_table(rope, HEAD_DIM, 9, CPU)[8, 3] == pytest.approx(
        math.cos(8 * 100.0 ** (-6 / HEAD_DIM) / 4), abs=1e-6
    )
    first = cos_sin_table(plain, HEAD_DIM, 9, CPU)[:, 0]
    assert torch.equal(cos_sin_table(rope, HEAD_DIM, 9, CPU)[:, 0], first)


def test_only_yarn_and_longrope_scale_attention() -> None:
    assert attention_factor(RopeConfig(scaling="linear", factor=4.0)) == 1.0
    assert attention_factor(RopeConfig(scaling="yarn", factor=4.0)) == pytest.approx(1.1386294)
    assert attention_factor(RopeConfig(scaling="yarn", factor=4.0, attention_factor=2.0)) == 2.0
