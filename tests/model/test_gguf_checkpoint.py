"""GGUF files of every type, written by the gguf library from a model of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fakes_tiny_model
import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from fakes_generation import Generation
from fakes_tiny_model import TinyModel
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from core.errors import ConfigError
from model.causal_lm import CausalLM
from model.gguf_checkpoint import GGUFCheckpoint
from model.loader import load_model
from model.tensor_parallel import TensorParallel
from text.families.llama import LLAMA
from text.model_card import ModelCard, load_card
from text.model_source import ModelSource

Array = npt.NDArray[np.float32]
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
SETTINGS: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 2,
    "tie_word_embeddings": True,
    "attention_bias": True,
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def load(card: ModelCard) -> CausalLM:
    return load_model(
        card, dtype=torch.float32, device=torch.device("cpu"), tp=TensorParallel.single()
    )


def gguf_name(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def interleaved(weight: Array, num_heads: int) -> Array:
    """Rows in the order in which llama.cpp's converter stores q and k: a loop, to be plain."""
    order = []
    for head in range(num_heads):
        for i in range(HEAD_DIM // 2):
            order += [head * HEAD_DIM + i, head * HEAD_DIM + HEAD_DIM // 2 + i]
    return weight[order]


def write_file(path: Path, tiny: TinyModel, kind: Type) -> None:
    """Matrices as `kind`, vectors as F32; the oracle gets the values that the file holds."""
    writer = gguf.GGUFWriter(path, "llama")
    write_metadata(writer)
    weights = tiny.oracle.state_dict()
    for name, tensor in weights.items():
        if name == "lm_head.weight":
            continue
        stored = kind if tensor.dim() > 1 else Type.F32
        packed = quantize(tensor.numpy(), stored)
        tensor.copy_(torch.from_numpy(np.array(dequantize(packed, stored))))
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
        data = interleaved(packed, heads) if heads else packed
        writer.add_tensor(gguf_name(name), data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(128)
    writer.add_feed_forward_length(256)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)


EXACT = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q8_0, Type.Q5_1]


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.name)
def test_a_gguf_model_equals_transformers_with_the_same_values(kind: Type, tmp_path: Path) -> None:
    tiny = fakes_tiny_model.llama(tmp_path / "hf", **SETTINGS)
    write_file(tmp_path / "model.gguf", tiny, kind)
    card = load_card(ModelSource("gguf", tmp_path / "model.gguf", "tiny"))
    model = load(card)
    prompt = [5, 9, 77, 130, 2, 64]
    [logits] = Generation(model, card).step([("a", prompt)])
    torch.testing.assert_close(logits, tiny.logits(prompt), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", EXACT, ids=lambda kind: kind.name)
def test_parts_equal_the_same_part_of_the_whole(kind: Type, tmp_path: Path) -> None:
    tiny = fakes_tiny_model.llama(tmp_path / "hf", **SETTINGS)
    write_file(tmp_path / "model.gguf", tiny, kind)
    weights = tiny.oracle.state_dict()
    query, down = "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj.weight"
    with GGUFCheckpoint(tmp_path / "model.gguf", LLAMA, HEAD_DIM) as checkpoint:
        heads = range(HEAD_DIM, 3 * HEAD_DIM)
        for name in (f"{query}.weight", f"{query}.bias"):
            part = checkpoint.read(name, rows=heads)
            assert torch.equal(part.float(), weights[name][HEAD_DIM : 3 * HEAD_DIM])
        columns = checkpoint.read(down, columns=range(5, 70))
        assert torch.equal(columns.float(), weights[down][:, 5:70])


@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q6_K], ids=lambda kind: kind.name)
def test_k_quants_equal_the_gguf_library(kind: Type, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    block, size_bytes = gguf.GGML_QUANT_SIZES[kind]
    packed = rng.integers(0, 256, (6, 2 * size_bytes), dtype=np.uint8)
    # Random bytes make infinite scales: exponents are cleared, wherever the format has its scales
    scales = slice(0, 4) if kind == Type.Q4_K else slice(size_bytes - 2, size_bytes)
    packed.reshape(-1, size_bytes)[:, scales] &= 0x3B
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFCheckpoint(tmp_path / "k.gguf", LLAMA, HEAD_DIM) as checkpoint:
        values = checkpoint.read("model.layers.0.mlp.up_proj.weight", rows=range(1, 5))
    assert values.shape == (4, 2 * block)
    assert torch.equal(values, torch.from_numpy(dequantize(packed, kind)[1:5]))


def test_a_tensor_of_no_known_name_is_unexpected(tmp_path: Path) -> None:
    tiny = fakes_tiny_model.llama(tmp_path / "hf", **SETTINGS)
    path = tmp_path / "model.gguf"
    write_file(path, tiny, Type.F32)
    card = load_card(ModelSource("gguf", path, "tiny"))
    writer = gguf.GGUFWriter(path, "llama")
    write_metadata(writer)
    writer.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((8, 128), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=r"unexpected blk\.0\.ffn_gate_inp\.weight"):
        load(card)
