"""The bytes behind the block pool: one worker rank's share of the KV.

Wire layout (agreed between P and D)   [block, layer, k/v, kv_head] pieces

    piece    values [token, dim], then, if the type is quantised, bfloat16 scales [token]

Memory has the same layout, which is private to this side. So a block is contiguous, some heads of
it are whole pieces, and packing copies bytes whatever their type; and a pool of huge pages takes
memory a few blocks at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tandem_kernels import LayerCache
from tandem_kernels.host_memory import lazy_zeros, touch
from tandem_kernels.kv_blocks import block_copies

from core.errors import ConfigError
from core.kv_spec import KVSpec
from kv_cache.pieces import layer_caches

_TOUCHING_NICE = 19
"""Of who makes memory present, beside steps that are under way."""


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
        self.num_layers = sum(group.num_layers for group in spec.groups)
        self.num_kv_heads = num_kv_heads_local or num_kv_heads
        self.piece_bytes = spec.block_size * spec.bytes_per_row(self.head_dim)
        """Bytes of one block's keys or values of one layer and head."""
        self.device = torch.device(device)
        # [block, layer and k/v, heads' pieces]
        self._pool = _zeros(
            (num_blocks, 2 * self.num_layers, self.num_kv_heads * self.piece_bytes), self.device
        )
        self._copies = block_copies(self.device)
        # Made once: a step asks for every layer
        self._layers = layer_caches(self._pool, spec, self.head_dim)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block on this rank, stored or on the wire."""
        return 2 * self.num_layers * self.num_kv_heads * self.piece_bytes

    def layer(self, index: int) -> LayerCache:
        """One layer's K and V, whose blocks and heads lie apart."""
        return self._layers[index]

    def pack(
        self,
        blocks: Sequence[int],
        head_slice: slice | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Copies blocks into one contiguous tensor in wire layout.

        `head_slice` names local heads (unset: all). Returns uint8 [n, layers, 2, heads,
        piece_bytes] on this device, or fills `out` (of that shape, perhaps pinned on the host).
        """
        part = self._part(head_slice)
        shape = (len(blocks), *self._block_shape(part))
        if out is None or out.device != self.device:
            packed = torch.empty(shape, dtype=torch.uint8, device=self.device)
        else:
            packed = out
        assert packed.is_contiguous() and packed.shape == shape
        self._copies.pack(part, blocks, packed.view(len(blocks), *part.shape[1:]))
        return packed if out is None or out is packed else out.copy_(packed)

    def unpack(
        self, blocks: Sequence[int], staging: torch.Tensor, head_slice: slice | None = None
    ) -> None:
        """Writes `staging` (as `pack` made it, on any device) into `blocks`' local heads."""
        part = self._part(head_slice)
        assert staging.dtype == torch.uint8
        assert staging.shape == (len(blocks), *self._block_shape(part))
        staged = staging.to(self.device).view(len(blocks), *part.shape[1:])
        self._copies.unpack(part, blocks, staged)

    def places(self, blocks: Sequence[int]) -> list[memoryview] | None:
        """Where whole blocks lie, in order, those of neighbours in one; None: not on the host.

        What is read there one after the other is what `pack` would have made of them.
        """
        if self.device.type != "cpu":
            return None
        assert all(0 <= block < self.num_blocks for block in blocks)
        memory, size = self._pool.view(-1).numpy().data, self.bytes_per_block
        places, begin = [], 0
        for end in range(1, len(blocks) + 1):
            if end == len(blocks) or blocks[end] != blocks[end - 1] + 1:
                places.append(memory[blocks[begin] * size : (blocks[end - 1] + 1) * size])
                begin = end
        return places

    def touch(self, first_block: int, end_block: int) -> None:
        """Makes these blocks' memory present, as they are; at any time, from any thread. Leaves the
        cores to whoever else wants them."""
        if self.device.type == "cpu":
            touch(self._pool[first_block:end_block], nice=_TOUCHING_NICE)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, given as (source, target); for forking a partly filled block.

        No target is a source too.
        """
        if pairs:
            self._copies.copy(self._pool, pairs)

    def _part(self, head_slice: slice | None) -> torch.Tensor:
        """The heads' pieces in all runs of the pool, uint8 [num_blocks, 2 x layers, bytes]."""
        if head_slice is None:
            return self._pool
        first, end, _ = head_slice.indices(self.num_kv_heads)
        return self._pool[:, :, first * self.piece_bytes : end * self.piece_bytes]

    def _block_shape(self, part: torch.Tensor) -> tuple[int, ...]:
        return (self.num_layers, 2, part.shape[2] // self.piece_bytes, self.piece_bytes)


def _zeros(shape: tuple[int, int, int], device: torch.device) -> torch.Tensor:
    """Zeros; on CPUs without touching the pages, so a pool takes only the memory it has used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=torch.uint8, device=device)
    return lazy_zeros(shape[0] * shape[1] * shape[2]).view(shape)
