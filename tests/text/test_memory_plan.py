"""How much fits: figures that can be checked with a pencil."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes_model_files import write_huggingface_directory

from core.config import ModelConfig
from text.memory_plan import plan_memory
from text.model_card import ModelCard, ModelSource, load_card
from text.weight_bytes import served_weights, weight_bytes

FLOATS = ModelConfig()
GIB = 1024**3
LLAMA_7B: dict[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
}


@pytest.fixture
def llama_7b(tmp_path: Path) -> ModelCard:
    write_huggingface_directory(tmp_path, LLAMA_7B)
    return load_card(ModelSource("huggingface", tmp_path, "llama-7b"))


def test_llama_7b_in_16_bit_costs_half_a_mebibyte_per_token(llama_7b: ModelCard) -> None:
    assert llama_7b.num_parameters == 6_738_415_616
    plan = plan_memory(llama_7b, FLOATS, memory_bytes=24 * GIB, block_size=16, dtype="bfloat16")
    assert plan.kv_bytes_per_token == 512 * 1024
    assert plan.weight_bytes == 2 * 6_738_415_616
    assert plan.num_tokens == (24 * GIB - plan.weight_bytes) // (512 * 1024) // 16 * 16
    assert plan.num_full_sequences == plan.num_tokens // 4096 == 5
    assert plan.fits


def test_nothing_fits_where_the_weights_do_not(llama_7b: ModelCard) -> None:
    plan = plan_memory(llama_7b, FLOATS, memory_bytes=8 * GIB, block_size=16, dtype="bfloat16")
    assert (plan.num_blocks, plan.num_full_sequences, plan.fits) == (0, 0, False)


def test_ranks_share_weights_and_heads(llama_7b: ModelCard) -> None:
    plan = plan_memory(
        llama_7b,
        FLOATS,
        memory_bytes=GIB,
        block_size=16,
        dtype="float32",
        tensor_parallel_size=4,
    )
    assert plan.kv_bytes_per_token == 1024 * 1024 // 4
    assert plan.weight_bytes == 6_738_415_616


@pytest.mark.parametrize(("num_ranks", "num_heads"), [(1, 3), (2, 2), (3, 1), (4, 1)])
def test_the_fullest_rank_counts_where_heads_do_not_divide(
    default_card: ModelCard, num_ranks: int, num_heads: int
) -> None:
    plan = plan_memory(
        default_card,
        FLOATS,
        memory_bytes=GIB,
        block_size=16,
        dtype="float32",
        tensor_parallel_size=num_ranks,
    )
    assert plan.kv_bytes_per_token == 2 * 30 * num_heads * 64 * 4


def test_a_window_bounds_what_a_long_sequence_holds(tmp_path: Path) -> None:
    changes = {**LLAMA_7B, "architectures": ["MistralForCausalLM"], "sliding_window": 1024}
    write_huggingface_directory(tmp_path, changes)
    card = load_card(ModelSource("huggingface", tmp_path, "mistral"))
    plan = plan_memory(card, FLOATS, memory_bytes=24 * GIB, block_size=16, dtype="bfloat16")
    assert plan.num_full_sequences == plan.num_blocks // 65


def test_quantised_kv_takes_a_byte_for_each_value_and_two_for_each_scale(
    default_card: ModelCard,
) -> None:
    plan = plan_memory(
        default_card,
        FLOATS,
        memory_bytes=GIB,
        block_size=16,
        dtype="bfloat16",
        kv_cache_dtype="int8",
    )
    assert plan.kv_bytes_per_token == 2 * 30 * 3 * (64 + 2)
    assert plan.kv_dtype == "int8"


NORMS_7B = 65 * 4096
VOCABULARY_7B = 32000 * 4096
LAYERS_7B = 6_738_415_616 - 2 * VOCABULARY_7B - NORMS_7B
ROWS_7B = 32 * (5 * 4096 + 2 * 11008)


@pytest.mark.parametrize("scheme", ["int8", "w8a8"])
def test_int8_takes_a_byte_a_weight_and_a_scale_a_row(scheme: str, llama_7b: ModelCard) -> None:
    config = ModelConfig.model_validate({"quantization": scheme})
    floats = 2 * (VOCABULARY_7B + NORMS_7B)
    head = VOCABULARY_7B + 4 * 32000
    assert weight_bytes(llama_7b, config, "bfloat16") == floats + head + LAYERS_7B + 4 * ROWS_7B
    assert served_weights(llama_7b, config, "bfloat16") == scheme


def test_int4_takes_half_a_byte_and_four_for_each_group(llama_7b: ModelCard) -> None:
    config = ModelConfig(quantization="int4", quantization_group_size=128)
    floats = 2 * (VOCABULARY_7B + NORMS_7B)
    head = VOCABULARY_7B + 4 * 32000
    layers = LAYERS_7B // 2 + LAYERS_7B // 128 * 4
    assert weight_bytes(llama_7b, config, "bfloat16") == floats + head + layers
    assert served_weights(llama_7b, config, "bfloat16") == "int4-g128"
    plan = plan_memory(llama_7b, config, memory_bytes=8 * GIB, block_size=16, dtype="bfloat16")
    assert plan.weight_bytes == floats + head + layers
    assert plan.fits


def test_auto_counts_what_the_checkpoint_holds(
    default_card: ModelCard, llama_7b: ModelCard
) -> None:
    auto = ModelConfig(quantization="auto")
    norms = 61 * 576
    whole = default_card.num_parameters - norms  # the head is tied
    assert weight_bytes(default_card, auto, "float32") == whole // 2 + whole // 32 * 4 + 4 * norms
    assert served_weights(default_card, auto, "float32") == "Q4_1"
    assert weight_bytes(llama_7b, auto, "bfloat16") == 2 * llama_7b.num_parameters
    assert served_weights(llama_7b, auto, "bfloat16") == "bfloat16"


def test_of_quantised_directories_the_vocabulary_stays_in_floats(llama_7b: ModelCard) -> None:
    card = dataclasses.replace(llama_7b, quantization="gptq-int4-g128")
    auto = ModelConfig(quantization="auto")
    floats = 2 * (2 * VOCABULARY_7B + NORMS_7B)
    expected = floats + LAYERS_7B // 2 + LAYERS_7B // 128 * 4
    assert weight_bytes(card, auto, "bfloat16") == expected
    assert weight_bytes(card, FLOATS, "bfloat16") == 2 * card.num_parameters
