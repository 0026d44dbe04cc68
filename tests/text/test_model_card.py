"""Model cards: what is read from config files, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from fakes_model_files import REMOVED, finish, gguf_writer, write_huggingface_directory
from safetensors.numpy import save_file

from core.errors import ConfigError
from core.kv_spec import KVGroup
from text.gguf_metadata import read_gguf
from text.model_card import ModelCard, ModelSource, load_card


def card_of(directory: Path, **changes: object) -> ModelCard:
    write_huggingface_directory(directory, changes)
    return load_card(ModelSource("huggingface", directory, "tiny"))


def gguf_card(path: Path) -> ModelCard:
    return load_card(ModelSource("gguf", path, "tiny"))


def test_the_default_models_card_is_what_its_makers_published(default_card: ModelCard) -> None:
    card = default_card
    assert card.name == "SmolLM2-135M-Instruct"
    assert (card.num_layers, card.hidden_size, card.intermediate_size) == (30, 576, 1536)
    assert (card.num_heads, card.num_kv_heads, card.head_dim) == (9, 3, 64)
    assert (card.vocab_size, card.max_model_len, card.rope.theta) == (49152, 8192, 1e5)
    assert card.tie_word_embeddings and not card.attention_bias and not card.mlp_bias
    assert card.num_parameters == 134_515_008
    assert (card.bos_token_id, card.eos_token_ids) == (1, (2,))
    assert (card.bos_token, card.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (card.quantization, card.dtype) == ("Q4_1", "bfloat16")
    assert card.chat_template is not None and "<|im_start|>" in card.chat_template


def test_a_directory_and_a_gguf_file_of_one_model_give_the_same_shape(tmp_path: Path) -> None:
    writer = gguf_writer(tmp_path / "tiny.gguf")
    writer.add_tensor("output.weight", np.zeros((64, 32), np.float16))
    finish(writer)
    ours, theirs = card_of(tmp_path / "dir"), gguf_card(tmp_path / "tiny.gguf")
    for key in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
        assert getattr(ours, key) == getattr(theirs, key)
    assert ours.num_parameters == theirs.num_parameters
    assert ours.rope == theirs.rope
    assert theirs.dtype == "float16" and theirs.quantization == "none"


def test_kv_spec_says_layers_heads_and_window(tmp_path: Path) -> None:
    card = card_of(tmp_path, architectures=["MistralForCausalLM"], sliding_window=24)
    spec = card.kv_spec(16, "float32")
    assert spec.groups == (KVGroup(num_layers=2, num_kv_heads=2, head_dim=8, window=24),)
    assert spec.bytes_per_token == 2 * 2 * 2 * 8 * 4


def test_a_null_window_is_none_and_an_absent_one_is_mistrals_default(tmp_path: Path) -> None:
    mistral = ["MistralForCausalLM"]
    null = card_of(tmp_path / "a", architectures=mistral, sliding_window=None)
    assert null.windows == (None, None)
    assert card_of(tmp_path / "b", architectures=mistral).windows == (4096, 4096)
    assert card_of(tmp_path / "c", sliding_window=24).windows == (None, None)


def test_parameters_are_counted_with_biases_and_own_head(tmp_path: Path) -> None:
    plain = card_of(tmp_path / "a", tie_word_embeddings=True).num_parameters
    attention = 32 * (32 + 16 + 16) + 32 * 32
    assert plain == 64 * 32 + 2 * (attention + 3 * 32 * 48 + 2 * 32) + 32
    assert card_of(tmp_path / "b").num_parameters == plain + 64 * 32
    biased = card_of(tmp_path / "c", tie_word_embeddings=True, attention_bias=True, mlp_bias=True)
    assert biased.num_parameters == plain + 2 * ((32 + 16 + 16 + 32) + (48 + 48 + 32))


def test_the_authors_numbers_for_sampling_are_read(tmp_path: Path) -> None:
    assert card_of(tmp_path / "silent").generation_config == {}
    write_huggingface_directory(tmp_path / "a")
    (tmp_path / "a" / "generation_config.json").write_text(
        '{"temperature": 0.6, "top_k": -1, "top_p": 1, "do_sample": true, "min_p": "much",'
        ' "repetition_penalty": NaN}'
    )
    found = load_card(ModelSource("huggingface", tmp_path / "a", "a")).generation_config
    assert found == {"temperature": 0.6, "top_k": 0, "top_p": 1}


def test_ends_of_text_are_gathered_from_all_files(tmp_path: Path) -> None:
    write_huggingface_directory(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 2]}')
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": {"content": "<s>"},
                "eos_token": "</turn>",
                "added_tokens_decoder": {"7": {"content": "</turn>"}, "1": {"content": "<s>"}},
                "chat_template": [
                    {"name": "tool_use", "template": "tools"},
                    {"name": "default", "template": "plain"},
                ],
            }
        )
    )
    card = load_card(ModelSource("huggingface", tmp_path, "tiny"))
    assert card.eos_token_ids == (2, 5, 7)
    assert (card.bos_token, card.eos_token, card.chat_template) == ("<s>", "</turn>", "plain")
    (tmp_path / "chat_template.jinja").write_text("from the file")
    card = load_card(ModelSource("huggingface", tmp_path, "tiny"))
    assert card.chat_template == "from the file"


def test_dtype_comes_from_config_or_else_from_the_weights(tmp_path: Path) -> None:
    assert card_of(tmp_path / "a", torch_dtype="bfloat16").dtype == "bfloat16"
    assert card_of(tmp_path / "b", torch_dtype=REMOVED, dtype="float16").dtype == "float16"
    assert card_of(tmp_path / "c", torch_dtype=REMOVED).dtype == "float32"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*LlamaForCausalLM"),
        ({"architectures": REMOVED}, "architectures"),
        ({"hidden_size": REMOVED}, "hidden_size"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_attention_heads": 5}, "num_attention_heads 5"),
        ({"num_attention_heads": 0}, "num_attention_heads 0"),
        ({"num_key_value_heads": 3}, "num_kv_heads 3"),
        ({"num_key_value_heads": 0}, "num_kv_heads"),
        ({"head_dim": 7}, "head_dim 7"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"max_position_embeddings": REMOVED}, "max_position_embeddings"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"type": "sideways"}}, "sideways"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1]}}, "long_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"eos_token_id": "two"}, "eos_token_id"),
    ],
)
def test_nonsense_is_refused_naming_the_key(
    tmp_path: Path, changes: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        card_of(tmp_path, **changes)


def test_missing_files_are_named(tmp_path: Path) -> None:
    source = ModelSource("huggingface", tmp_path, "tiny")
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_card(source)
    write_huggingface_directory(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="safetensors"):
        load_card(source)
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"one\.safetensors, two\.safetensors"):
        load_card(source)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"cannot read .*config\.json"):
        load_card(source)


def test_a_truncated_weight_file_is_refused(tmp_path: Path) -> None:
    write_huggingface_directory(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="truncated"):
        load_card(ModelSource("huggingface", tmp_path, "tiny"))


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("general.architecture", "mamba", "mamba.*supported: llama"),
        ("llama.expert_count", 8, "experts"),
        ("llama.rope.dimension_count", 4, "dimension_count 4"),
        ("llama.rope.scaling.type", "spiral", "spiral"),
        ("tokenizer.ggml.eos_token_id", 9, "special token 9"),
        ("split.count", 3, "split"),
    ],
)
def test_gguf_nonsense_is_refused_naming_the_key(
    tmp_path: Path, key: str, value: int | str, named: str
) -> None:
    path = tmp_path / "tiny.gguf"
    writer = gguf_writer(path)
    writer.add_token_list(["a", "b"])
    writer.kv_data[0].pop(key, None)
    if isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_uint32(key, value)
    finish(writer)
    with pytest.raises(ConfigError, match=named):
        gguf_card(path)


def test_llama3_scaling_in_gguf_is_a_tensor_of_divisors(tmp_path: Path) -> None:
    writer = gguf_writer(tmp_path / "tiny.gguf")
    writer.add_tensor("rope_freqs.weight", np.array([1, 1, 2.5, 8], np.float32))
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(32)
    finish(writer)
    rope = gguf_card(tmp_path / "tiny.gguf").rope
    assert rope.frequency_factors == (1.0, 1.0, 2.5, 8.0)
    assert (rope.scaling, rope.factor, rope.original_max_position) == ("yarn", 4.0, 32)


def test_the_digest_is_equal_wherever_the_same_files_lie(tmp_path: Path) -> None:
    first = card_of(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "elsewhere" / "two")
    second = load_card(ModelSource("huggingface", tmp_path / "elsewhere" / "two", "other"))
    assert first.weights_digest == second.weights_digest


def test_the_digest_differs_for_other_weights_and_other_arithmetic(tmp_path: Path) -> None:
    digests = {
        card_of(tmp_path / "a").weights_digest,
        card_of(tmp_path / "b", rms_norm_eps=1e-6).weights_digest,
        card_of(tmp_path / "c", num_hidden_layers=1).weights_digest,
        load_card(
            ModelSource("huggingface", write_huggingface_directory(tmp_path / "d", seed=1), "d")
        ).weights_digest,
    }
    assert len(digests) == 4


def test_a_change_in_any_tensor_of_a_gguf_file_changes_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    finish(gguf_writer(path))
    before = gguf_card(path).weights_digest
    renamed = path.rename(tmp_path / "renamed.gguf")
    assert gguf_card(renamed).weights_digest == before
    norm = read_gguf(renamed).tensors["output_norm.weight"]
    data = bytearray(renamed.read_bytes())
    data[norm.offset_bytes + norm.size_bytes - 1] ^= 1
    path.write_bytes(data)
    assert gguf_card(path).weights_digest != before


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    write_huggingface_directory(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    for i, name in enumerate(("a", "b")):
        save_file({name: np.full(4, i, np.float32)}, tmp_path / f"part-{i}.safetensors")
    save_file({"c": np.zeros(1, np.float32)}, tmp_path / "unrelated.safetensors")
    index = {"weight_map": {"a": "part-0.safetensors", "b": "part-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    source = ModelSource("huggingface", tmp_path, "tiny")
    before = load_card(source).weights_digest
    save_file({"c": np.ones(1, np.float32)}, tmp_path / "unrelated.safetensors")
    assert load_card(source).weights_digest == before
    save_file({"b": np.ones(4, np.float32) * 3}, tmp_path / "part-1.safetensors")
    assert load_card(source).weights_digest != before


def test_a_card_travels_between_processes_and_stays_as_it_is(default_card: ModelCard) -> None:
    assert pickle.loads(pickle.dumps(default_card)) == default_card
    with pytest.raises(dataclasses.FrozenInstanceError):
        default_card.num_layers = 1  # type: ignore[misc]
