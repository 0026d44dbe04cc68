"""A checkpoint whose weights carry a calibration's factors, so that the model computes the same.

    input norm / s > q, k, v x s        v / s > attention > output x s
    MLP norm / s > gate, up x s         up / s > (act(gate) x up) > down x s

Exact but for rounding: a norm's weight, a value's rows and up's rows pass through linearly.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import torch
from tandem_kernels import QuantizedWeight
from torch import Tensor

from core.errors import ConfigError
from model.checkpoint import Checkpoint
from model.quantization.calibration import Calibration
from text.card import ModelCard
from text.families.registry import family_named


def query_channels(card: ModelCard) -> Tensor:
    """The value channel that each column of the output projection reads. int64 [heads * d]."""
    heads = torch.arange(card.num_heads) // (card.num_heads // card.num_kv_heads)
    channels = heads.unsqueeze(1) * card.head_dim + torch.arange(card.head_dim)
    return channels.flatten()


class CalibratedCheckpoint:
    """A `Checkpoint` of floats over another; closing it closes that one."""

    def __init__(self, checkpoint: Checkpoint, calibration: Calibration, card: ModelCard) -> None:
        """Raises ConfigError for factors that no layer of the model has, or of other sizes."""
        self._checkpoint = checkpoint
        self._plus_one = family_named(card.architecture).norm_plus_one
        self._rows: dict[str, Tensor] = {}
        """Tensor name -> what its rows are multiplied with."""
        self._columns: dict[str, Tensor] = {}
        sites = _Sites(card)
        for name, factors in calibration.factors.items():
            rows, columns = sites.tensors(name, factors)
            self._rows |= rows
            self._columns |= columns

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._checkpoint.shapes

    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> Tensor:
        tensor = self._checkpoint.read(name, rows, columns)
        by_row, by_column = self._rows.get(name), self._columns.get(name)
        if by_row is not None:
            by_row = by_row if rows is None else by_row[rows.start : rows.stop]
            plus = 1 if self._plus_one and tensor.dim() == 1 and name.endswith(".weight") else 0
            floats = tensor.float() + plus
            tensor = floats * by_row.view(-1, *[1] * (tensor.dim() - 1)) - plus
        if by_column is not None:
            by_column = by_column if columns is None else by_column[columns.start : columns.stop]
            tensor = tensor.float() * by_column
        return tensor

    def read_quantized(
        self, name: str, rows: range | None = None, columns: range | None = None
    ) -> QuantizedWeight | None:
        return None

    def __enter__(self) -> CalibratedCheckpoint:
        self._checkpoint.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._checkpoint.__exit__(kind, error, trace)


class _Sites:
    """Which tensors each site's factors belong to."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card
        self._family = family_named(card.architecture)
        kv_size = card.num_kv_heads * card.head_dim
        self._sizes = {
            "qkv": card.hidden_size,
            "output": kv_size,
            "gate_up": card.hidden_size,
            "down": card.intermediate_size,
        }

    def tensors(self, name: str, factors: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(rows', columns' factors) by tensor name, for the site `layers.3.qkv`."""
        layer, _, site = name.removeprefix("layers.").partition(".")
        if site not in self._sizes or not layer.isdigit() or int(layer) >= self._card.num_layers:
            raise ConfigError(f"model.calibration: {self._card.name} has no {name}")
        if factors.shape != (self._sizes[site],):
            raise ConfigError(
                f"model.calibration: {name} is {list(factors.shape)}, not [{self._sizes[site]}]"
            )
        prefix = self._family.layer_prefix(int(layer))
        match site:
            case "qkv":
                return self._after_norm(prefix, self._family.layer.input_norm, "qkv", factors)
            case "gate_up":
                norm = self._family.layer.mlp_norm
                assert norm is not None
                return self._after_norm(prefix, norm, "gate_up", factors)
            case "output":
                return self._output(prefix, factors)
        return self._down(prefix, factors)

    def _after_norm(
        self, prefix: str, norm: str, site: str, factors: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        names = self._family.layer
        readers = {names.q, names.k, names.v}
        if site == "gate_up" or names.mlp_norm is None:
            readers = readers if site == "qkv" else set()
            readers |= {n for n in (names.gate, names.up) if n is not None}
        rows = {f"{prefix}{norm}.{kind}": 1 / factors for kind in ("weight", "bias")}
        return rows, {f"{prefix}{reader}.weight": factors for reader in readers}

    def _output(self, prefix: str, factors: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        card, names = self._card, self._family.layer
        outputs = (
            (names.q, torch.ones(card.num_heads * card.head_dim)),
            (names.k, torch.ones_like(factors)),
            (names.v, 1 / factors),
        )
        columns = {f"{prefix}{names.output}.weight": factors[query_channels(card)]}
        return self._stacked(prefix, names.v, outputs), columns

    def _down(self, prefix: str, factors: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        names = self._family.layer
        assert names.gate is not None
        outputs = ((names.gate, torch.ones_like(factors)), (names.up, 1 / factors))
        return self._stacked(prefix, names.up, outputs), {f"{prefix}{names.down}.weight": factors}

    def _stacked(
        self, prefix: str, module: str, outputs: tuple[tuple[str, Tensor], ...]
    ) -> dict[str, Tensor]:
        """Rows of a module that may hold several outputs one after the other."""
        rows = torch.cat([factors for name, factors in outputs if name == module])
        return {f"{prefix}{module}.{kind}": rows for kind in ("weight", "bias")}
