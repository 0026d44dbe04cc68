"""Tensor kernels behind one protocol: tensors in, tensors out, nothing of ours above."""

from tandem_kernels.decoder import Activation, Decoder, DecoderLayer, DecoderShape, Norm
from tandem_kernels.interface import AttentionMeta, Kernels, LayerCache, StepProgram
from tandem_kernels.packed_linear import PackedLinear, QuantizedWeight
from tandem_kernels.select import prefers_bfloat16, select, select_sampling

__all__ = [
    "Activation",
    "AttentionMeta",
    "Decoder",
    "DecoderLayer",
    "DecoderShape",
    "Kernels",
    "LayerCache",
    "Norm",
    "PackedLinear",
    "QuantizedWeight",
    "StepProgram",
    "prefers_bfloat16",
    "select",
    "select_sampling",
]
