"""Watches what reaches every linear layer while a model reads texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from tandem_kernels import AttentionMeta, Decoder, PackedLinear, QuantizedWeight, StepProgram
from tandem_kernels.reference import ReferenceKernels
from torch import Tensor

from kv_cache.storage import KVStorage
from model.loader import load_model
from model.quantization.calibration import SITES
from model.quantization.smoothing import Inputs
from model.tensor_parallel import TensorParallel
from text.card import ModelCard

# Tokens whose inputs are kept of each layer: more make no better factors.
_NUM_SAMPLES = 256
_BLOCK_SIZE = 16


def watch_inputs(
    card: ModelCard, texts: Sequence[Sequence[int]], progress: Callable[[int, int], None]
) -> Mapping[str, Inputs]:
    """Runs the model in float32 over token ids; inputs by site (`layers.3.qkv`).

    `progress` is told the texts done and their number.
    """
    kernels = _WatchingKernels(sum(map(len, texts)))
    dtype, device = torch.float32, torch.device("cpu")
    tp = TensorParallel.single()
    model = load_model(card, dtype=dtype, device=device, tp=tp, kernels=kernels)
    num_blocks = -(-max(map(len, texts)) // _BLOCK_SIZE)
    storage = KVStorage(card.kv_spec(_BLOCK_SIZE, "float32"), num_blocks)
    with torch.inference_mode():
        for i, text in enumerate(texts):
            token_ids, positions = torch.tensor(text), torch.arange(len(text))
            model.forward(token_ids, positions, _alone(len(text)), storage)
            progress(i + 1, len(texts))
    return kernels.inputs()


def _alone(num_tokens: int) -> AttentionMeta:
    """One whole text in blocks 0, 1, 2, ..."""
    num_blocks = -(-num_tokens // _BLOCK_SIZE)
    return AttentionMeta(
        query_starts=torch.tensor([0, num_tokens], dtype=torch.int32),
        context_lens=torch.tensor([num_tokens], dtype=torch.int32),
        block_tables=torch.arange(num_blocks, dtype=torch.int32).view(1, -1),
        slot_mapping=torch.arange(num_tokens),
        num_decode=1 if num_tokens == 1 else 0,
        max_context_len=num_tokens,
    )


class _WatchedLinear:
    """A `PackedLinear` that remembers some of its inputs and the size of all of them."""

    def __init__(self, linear: PackedLinear, stride: int) -> None:
        self._linear = linear
        self._stride = stride
        self._samples: list[Tensor] = []
        self._sum = torch.zeros(())
        self._largest = torch.zeros(())
        self._num_tokens = 0

    def __call__(self, x: Tensor) -> Tensor:
        first = -self._num_tokens % self._stride
        self._samples.append(x[first :: self._stride].clone())
        self._sum = self._sum + x.abs().sum(0)
        self._largest = torch.maximum(self._largest, x.abs().amax(0))
        self._num_tokens += len(x)
        return self._linear(x)

    def weight_rows(self, indices: Tensor) -> Tensor:
        return self._linear.weight_rows(indices)

    def inputs(self) -> Inputs:
        mean = self._sum / max(1, self._num_tokens)
        return Inputs(torch.cat(self._samples), mean, self._largest)


class _WatchingKernels(ReferenceKernels):
    """Torch kernels whose linear layers are watched, those of the decoder's layers at least."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(torch.float32)
        self._stride = max(1, num_tokens // _NUM_SAMPLES)
        self._decoder: Decoder | None = None

    def pack_linear(
        self,
        weight: Tensor | QuantizedWeight,
        bias: Tensor | None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> PackedLinear:
        linear = super().pack_linear(weight, bias, out_dtype=out_dtype)
        return _WatchedLinear(linear, self._stride)

    def program(self, decoder: Decoder) -> StepProgram | None:
        self._decoder = decoder
        return None

    def inputs(self) -> dict[str, Inputs]:
        assert self._decoder is not None, "a model was loaded with these kernels"
        found = {}
        for i, layer in enumerate(self._decoder.layers):
            for site in SITES:
                linear = getattr(layer, site)
                assert isinstance(linear, _WatchedLinear)
                found[f"layers.{i}.{site}"] = linear.inputs()
        return found
