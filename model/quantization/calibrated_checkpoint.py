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
from text.families.family import Family
from text.families.registry import family_named


def query_channels(card: ModelCard) -> Tensor:
    """The value channel that each column of the output projection reads. int64 [heads * d]."""
    heads = torch.arange(card.num_heads) // (card.num_heads // card.num_kv_heads)
    channels = heads.unsqueeze(1) * card.head_dim + torch.arange(card.head_dim)
    return channels.flatten()


def importance_by_module(calibration: Calibration, family: Family) -> dict[str, Tensor]:
    """The importance of each weight's columns, by the weight's module."""
    found: dict[str, Tensor] = {}
    for name, importance in calibration.importance.items():
        layer, site = _layer_and_site(name)
        prefix = family.layer_prefix(layer)
        found |= {prefix + reader: importance for reader in _readers(family, site)}
    return found


class CalibratedCheckpoint:
    """A `Checkpoint` of floats over another; closing it closes that one."""

    def __init__(self, checkpoint: Checkpoint, calibration: Calibration, card: ModelCard) -> None:
        """Raises ConfigError for factors or importance of sites that the model doesn't have, or of
        other sizes."""
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
        for name, importance in calibration.importance.items():
            sites.check_importance(name, importance)

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
        layer, site = self._checked(name, factors, self._sizes)
        prefix = self._family.layer_prefix(layer)
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

    def check_importance(self, name: str, importance: Tensor) -> None:
        card = self._card
        self._checked(name, importance, self._sizes | {"output": card.num_heads * card.head_dim})

    def _checked(self, name: str, values: Tensor, sizes: Mapping[str, int]) -> tuple[int, str]:
        layer, site = _layer_and_site(name)
        if site not in sizes or not 0 <= layer < self._card.num_layers:
            raise ConfigError(f"model.calibration: {self._card.name} has no {name}")
        if values.shape != (sizes[site],):
            raise ConfigError(
                f"model.calibration: {name} is {list(values.shape)}, not [{sizes[site]}]"
            )
        return layer, site

    def _after_norm(
        self, prefix: str, norm: str, site: str, factors: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        rows = {f"{prefix}{norm}.{kind}": 1 / factors for kind in ("weight", "bias")}
        return rows, {
            f"{prefix}{reader}.weight": factors for reader in _readers(self._family, site)
        }

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


def _layer_and_site(name: str) -> tuple[int, str]:
    """Of `layers.3.qkv`; layer -1 where it is no such name."""
    layer, _, site = name.removeprefix("layers.").partition(".")
    return int(layer) if layer.isdigit() else -1, site


def _readers(family: Family, site: str) -> set[str]:
    """Modules of a layer whose columns read a site's channels."""
    names = family.layer
    match site:
        case "output":
            return {names.output}
        case "down":
            return {names.down}
    mlp = {name for name in (names.gate, names.up) if name is not None}
    if site == "gate_up":
        return mlp
    attention = {names.q, names.k, names.v}
    return attention if names.mlp_norm is not None else attention | mlp
