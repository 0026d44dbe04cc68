"""The tensors behind the block pool: one worker rank's share of the KV.

Wire layout (agreed between P and D)  [block, layer, k/v, kv_head, token, dim]

Memory has the same layout, which is private to this side. So a block is one piece: packing copies
whole pieces, and a pool of huge pages takes memory a few blocks at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from tandem_kernels import LayerCache
from tandem_kernels.host_memory import lazy_zeros

from core.errors import ConfigError
from core.kv_spec import DTYPE_BYTES, KVSpec

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class KVStorage:
    """KV of all layers for `num_blocks` blocks and this rank's KV heads.

    Every slot always holds a finite number: slots start as zeros and are only overwritten with what
    the model computed. Attention may therefore read whole tiles and give masked slots the weight 0;
    with uninitialised memory, 0 x NaN would poison the sum.
    """

    def __init__(
        self,
        spec: KVSpec,
        num_blocks: int,
        *,
        device: torch.device | str = "cpu",
        num_kv_heads_local: int | None = None,
    ) -> None:
        shapes = {(group.num_kv_heads, group.head_dim) for group in spec.groups}
        if len(shapes) != 1:
            raise ConfigError(f"layers of different KV shapes {sorted(shapes)} are not supported")
        num_kv_heads, self.head_dim = shapes.pop()
        self.spec = spec
        self.num_blocks = num_blocks
        self.block_size = spec.block_size
        self.num_layers = sum(group.num_layers for group in spec.groups)
        self.num_kv_heads = num_kv_heads_local or num_kv_heads
        self.dtype = _DTYPES[spec.dtype]
        self.device = torch.device(device)
        shape = (
            num_blocks,
            self.num_layers,
            2,
            self.num_kv_heads,
            self.block_size,
            self.head_dim,
        )
        self._wire = _zeros(shape, self.dtype, self.device)
        self.data = self._wire.permute(1, 2, 0, 3, 4, 5)
        """The same memory as [layer, k/v, block, kv_head, token, dim]."""
        # Made once: a step asks for every layer
        self._layers = [LayerCache(k, v) for k, v in self.data.unbind(0)]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block on this rank, stored or on the wire."""
        return (
            2
            * self.num_layers
            * self.num_kv_heads
            * self.block_size
            * self.head_dim
            * DTYPE_BYTES[self.spec.dtype]
        )

    def layer(self, index: int) -> LayerCache:
        """K and V of one layer, whose blocks are contiguous but lie apart."""
        return self._layers[index]

    def pack(
        self,
        blocks: Sequence[int],
        head_slice: slice | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Copies blocks into one contiguous tensor in wire layout.

        `head_slice` names local heads (unset: all). Returns [n, layers, 2, heads, block_size,
        head_dim] on this device, or fills `out` (of that shape, perhaps pinned on the host).
        """
        source = self._heads(head_slice)
        index = self._index(blocks)
        if out is None or out.device != self.device:
            packed = source.index_select(0, index).contiguous()
            return packed if out is None else out.copy_(packed)
        assert out.is_contiguous() and out.shape == (len(blocks), *source.shape[1:])
        torch.index_select(source, 0, index, out=out)
        return out

    def unpack(
        self, blocks: Sequence[int], staging: torch.Tensor, head_slice: slice | None = None
    ) -> None:
        """Writes `staging` (as `pack` made it, on any device) into `blocks`' local heads."""
        target = self._heads(head_slice)
        assert staging.dtype == self.dtype, f"{staging.dtype} staged for {self.dtype} KV"
        assert staging.shape == (len(blocks), *target.shape[1:])
        target.index_copy_(0, self._index(blocks), staging.to(self.device))

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, given as (source, target); for forking a partly filled block."""
        if pairs:
            sources, targets = zip(*pairs, strict=True)
            copied = self._wire.index_select(0, self._index(sources))
            self._wire.index_copy_(0, self._index(targets), copied)

    def _heads(self, head_slice: slice | None) -> torch.Tensor:
        """The storage in wire order, [num_blocks, layers, 2, heads, block_size, head_dim]."""
        return self._wire if head_slice is None else self._wire[:, :, :, head_slice]

    def _index(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.device)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on CPUs without touching the pages, so a pool takes only the memory it has used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return lazy_zeros(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
