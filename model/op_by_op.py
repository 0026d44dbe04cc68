"""A decoder's step, one kernel after the other: for backends without a program, and for groups.

    column parallel   qkv, gate and up: every rank has some outputs, no communication
    row parallel      output and down: every rank has a summand of all outputs

so an attention or an MLP costs one all-reduce, and a layer in which both are summed costs one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem_kernels import AttentionMeta, Decoder, DecoderLayer, Kernels, LayerCache, Norm
from torch import Tensor

from model.tensor_parallel import TensorParallel
from model.vocab_embedding import VocabParallelEmbedding


class OpByOp:
    """A `StepProgram` of any backend's kernels and any number of ranks."""

    def __init__(
        self, decoder: Decoder, kernels: Kernels, tp: TensorParallel, *, vocab_size: int
    ) -> None:
        self._decoder = decoder
        self._shape = decoder.shape
        self._kernels = kernels
        self._tp = tp
        self._vocab_size = vocab_size
        self._embedding = VocabParallelEmbedding(decoder.embedding, tp.share(vocab_size), tp)
        # The norm after each layer is the next one's input norm, so adds and norms can be fused
        inputs = [layer.input_norm for layer in decoder.layers]
        self._next_norms = (*inputs[1:], decoder.final_norm)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        caches: Sequence[LayerCache],
        rows: Tensor | None = None,
    ) -> Tensor:
        """`StepProgram.forward`."""
        _check_range("token id", token_ids, self._vocab_size)
        _check_range("position", positions, len(self._decoder.cos_sin[0]))
        layers = self._decoder.layers
        residual = self._embedding(token_ids)  # [T, hidden]
        if self._shape.embedding_scale != 1.0:
            residual = residual * self._shape.embedding_scale
        x = self._norm(residual, layers[0].input_norm)
        for i, layer in enumerate(layers):
            attended = self._attention(layer, x, positions, meta, caches[i])
            if rows is not None and i == len(layers) - 1:
                # The last layer's KV is written: other tokens are of no more use
                x, residual, attended = x[rows], residual[rows], attended[rows]
            x, residual = self._rest(layer, x, attended, residual, self._next_norms[i])
        return x

    def step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        caches: Sequence[LayerCache],
        rows: Tensor,
        only_largest: Tensor | None = None,
    ) -> Tensor:
        """`StepProgram.step`; all logits are exact."""
        return self.logits(self.forward(token_ids, positions, meta, caches, rows))

    def logits(self, hidden: Tensor) -> Tensor:
        """`StepProgram.logits`, complete on every rank."""
        logits = self._tp.all_gather_columns(self._decoder.head(hidden), self._vocab_size)
        softcap = self._shape.logits_softcap
        return logits.div_(softcap).tanh_().mul_(softcap) if softcap else logits

    def _rest(
        self, layer: DecoderLayer, x: Tensor, attended: Tensor, residual: Tensor, next_norm: Norm
    ) -> tuple[Tensor, Tensor]:
        """What follows a layer's attention, up to the next norm and the residual it read."""
        if layer.mlp_norm is None:
            x = self._tp.all_reduce(attended + self._mlp(layer, x))
            return self._add_norm(x, residual, next_norm)
        attended = self._post_norm(self._tp.all_reduce(attended), layer.post_attention_norm)
        x, residual = self._add_norm(attended, residual, layer.mlp_norm)
        x = self._post_norm(self._tp.all_reduce(self._mlp(layer, x)), layer.post_mlp_norm)
        return self._add_norm(x, residual, next_norm)

    def _attention(
        self,
        layer: DecoderLayer,
        x: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        cache: LayerCache,
    ) -> Tensor:
        """This rank's summand of the attention's output. [T, hidden] -> [T, hidden]."""
        shape, num_q, num_kv = self._shape, self._shape.num_heads, self._shape.num_kv_heads
        heads = layer.qkv(x).view(len(x), -1, shape.head_dim)  # [T, q + k + v heads, d]
        q, k = heads[:, :num_q], heads[:, num_q : num_q + num_kv]
        v = heads[:, num_q + num_kv :]
        q, k = self._post_norm(q, layer.q_norm), self._post_norm(k, layer.k_norm)
        cos_sin = self._decoder.cos_sin[layer.cos_sin]
        q = self._kernels.rope_write_kv(q, k, v, positions, cos_sin, cache, meta.slot_mapping)
        attended = self._kernels.paged_attention(
            q,
            cache,
            meta,
            scale=shape.attention_scale,
            window=layer.window,
            softcap=shape.attention_softcap,
        )  # [T, q heads, d]
        return layer.output(attended.view(len(x), -1))

    def _mlp(self, layer: DecoderLayer, x: Tensor) -> Tensor:
        """This rank's summand. [T, hidden] -> [T, hidden]."""
        shape = self._shape
        inner = self._kernels.activate(layer.gate_up(x), shape.activation, gated=shape.gated)
        return layer.down(inner)

    def _norm(self, x: Tensor, norm: Norm) -> Tensor:
        if norm.bias is None:
            return self._kernels.rms_norm(x, norm.weight, self._shape.norm_eps)
        return self._kernels.layer_norm(x, norm.weight, norm.bias, self._shape.norm_eps)

    def _post_norm(self, x: Tensor, norm: Norm | None) -> Tensor:
        """x where there is no such norm."""
        return x if norm is None else self._norm(x, norm)

    def _add_norm(self, x: Tensor, residual: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """(norm(residual + x), residual + x)."""
        if norm.bias is None:
            return self._kernels.add_rms_norm(x, residual, norm.weight, self._shape.norm_eps)
        total = residual.add_(x)
        return self._norm(total, norm), total


def _check_range(what: str, numbers: Tensor, end: int) -> None:
    """Raises IndexError on CPUs; other devices would have to be waited for."""
    if numbers.device.type != "cpu" or not len(numbers):
        return
    if int(numbers.min()) < 0 or int(numbers.max()) >= end:
        raise IndexError(f"a {what} is not in 0 .. {end - 1}")
