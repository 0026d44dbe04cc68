"""A decoder and its step as decoder.h has them, field by field."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tandem_kernels.cpu.elementwise import ACTIVATIONS
from tandem_kernels.cpu.kv_write import ELEMENT_TYPES
from tandem_kernels.cpu.layer_cache import BatchStruct, CacheStruct
from tandem_kernels.cpu.linear import CpuLinear
from tandem_kernels.decoder import Decoder, DecoderLayer, Norm
from tandem_kernels.interface import AttentionMeta
from tandem_kernels.packed_linear import PackedLinear

_P, _N, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class NormStruct(ctypes.Structure):
    """`TandemNorm`."""

    _fields_ = (("weight", _P), ("bias", _P))


class LayerStruct(ctypes.Structure):
    """`TandemDecoderLayer`."""

    _fields_ = (
        ("input_norm", NormStruct),
        ("q_norm", NormStruct),
        ("k_norm", NormStruct),
        ("post_attention_norm", NormStruct),
        ("mlp_norm", NormStruct),
        ("post_mlp_norm", NormStruct),
        ("qkv", _P),
        ("output", _P),
        ("gate_up", _P),
        ("down", _P),
        ("cos_sin", _P),
        ("window", _N),
    )


class DecoderStruct(ctypes.Structure):
    """`TandemDecoder`."""

    _fields_ = (
        ("layers", ctypes.POINTER(LayerStruct)),
        ("final_norm", NormStruct),
        ("embedding_linear", _P),
        ("embedding_table", _P),
        ("head", _P),
        ("head_screen", _P),
        ("num_layers", _N),
        ("vocab_size", _N),
        ("max_positions", _N),
        ("hidden_size", _N),
        ("num_heads", _N),
        ("num_kv_heads", _N),
        ("head_dim", _N),
        ("rotary_dim", _N),
        ("inner_size", _N),
        ("logits_size", _N),
        ("norm_eps", _F),
        ("attention_scale", _F),
        ("attention_softcap", _F),
        ("logits_softcap", _F),
        ("embedding_scale", _F),
        ("gated", _I),
        ("activation", _I),
        ("element", _I),
    )


class StepStruct(ctypes.Structure):
    """`TandemStep`."""

    _fields_ = (
        ("batch", BatchStruct),
        ("token_ids", _P),
        ("num_tokens", _N),
        ("caches", ctypes.POINTER(ctypes.POINTER(CacheStruct))),
        ("rows", _P),
        ("num_rows", _N),
        ("hidden", _P),
        ("logits", _P),
        ("only_largest", _P),
        ("scratch", _P),
        ("scratch_bytes", _N),
        ("timings", _P),
    )


def decoder_struct(decoder: Decoder, dtype: torch.dtype, head_screen: int | None) -> DecoderStruct:
    """Points into the decoder's tensors and linears, and doesn't keep them alive."""
    shape, embedding = decoder.shape, decoder.embedding
    head = _cpu_linear(decoder.head)
    layers = [_layer(layer, decoder, dtype) for layer in decoder.layers]
    assert layers
    if isinstance(embedding, Tensor):
        assert embedding.dtype == dtype and embedding.is_contiguous()
        vocab_size = len(embedding)
    else:
        vocab_size = _cpu_linear(embedding).out_features
    return DecoderStruct(
        layers=(LayerStruct * len(layers))(*layers),
        final_norm=_norm(decoder.final_norm, dtype),
        embedding_linear=None if isinstance(embedding, Tensor) else _address(embedding),
        embedding_table=embedding.data_ptr() if isinstance(embedding, Tensor) else None,
        head=head.address,
        head_screen=head_screen,
        num_layers=len(layers),
        vocab_size=vocab_size,
        max_positions=min(map(len, decoder.cos_sin)),
        hidden_size=shape.hidden_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rotary_dim=shape.rotary_dim,
        inner_size=shape.inner_size,
        logits_size=head.out_features,
        norm_eps=shape.norm_eps,
        attention_scale=shape.attention_scale,
        attention_softcap=shape.attention_softcap,
        logits_softcap=shape.logits_softcap,
        embedding_scale=shape.embedding_scale,
        gated=shape.gated,
        activation=ACTIVATIONS[shape.activation],
        element=ELEMENT_TYPES[dtype],
    )


def describe_batch(
    step: StepStruct, token_ids: Tensor, positions: Tensor, meta: AttentionMeta
) -> None:
    """Makes `step` point into the tensors of a batch."""
    int64s = (token_ids, positions, meta.slot_mapping)
    int32s = (meta.query_starts, meta.context_lens, meta.block_tables)
    assert all(tensor.dtype == torch.int64 for tensor in int64s)
    assert all(tensor.dtype == torch.int32 for tensor in int32s)
    assert all(map(Tensor.is_contiguous, (*int64s, *int32s)))
    step.token_ids, step.num_tokens = token_ids.data_ptr(), len(token_ids)
    batch = step.batch
    batch.query_starts, batch.context_lens, batch.block_tables = map(Tensor.data_ptr, int32s)
    batch.slot_mapping, batch.positions = meta.slot_mapping.data_ptr(), positions.data_ptr()
    batch.num_sequences, batch.table_width = meta.block_tables.shape


def _layer(layer: DecoderLayer, decoder: Decoder, dtype: torch.dtype) -> LayerStruct:
    is_parallel = layer.mlp_norm is None
    # No family has both, and what would be normed then isn't said anywhere
    assert not (is_parallel and (layer.post_attention_norm or layer.post_mlp_norm))
    cos_sin = decoder.cos_sin[layer.cos_sin]
    assert cos_sin.dtype == torch.float32 and cos_sin.is_contiguous()
    assert cos_sin.shape[1] == decoder.shape.rotary_dim
    return LayerStruct(
        input_norm=_norm(layer.input_norm, dtype),
        q_norm=_norm(layer.q_norm, dtype),
        k_norm=_norm(layer.k_norm, dtype),
        post_attention_norm=_norm(layer.post_attention_norm, dtype),
        mlp_norm=_norm(layer.mlp_norm, dtype),
        post_mlp_norm=_norm(layer.post_mlp_norm, dtype),
        qkv=_address(layer.qkv),
        output=_address(layer.output),
        gate_up=_address(layer.gate_up),
        down=_address(layer.down),
        cos_sin=cos_sin.data_ptr(),
        window=layer.window or 0,
    )


def _norm(norm: Norm | None, dtype: torch.dtype) -> NormStruct:
    if norm is None:
        return NormStruct()
    for tensor in (norm.weight, norm.bias):
        assert tensor is None or (tensor.dtype == dtype and tensor.is_contiguous())
    bias = None if norm.bias is None else norm.bias.data_ptr()
    return NormStruct(weight=norm.weight.data_ptr(), bias=bias)


def _cpu_linear(linear: PackedLinear) -> CpuLinear:
    assert isinstance(linear, CpuLinear)
    return linear


def _address(linear: PackedLinear) -> int:
    return _cpu_linear(linear).address
