"""Which kind of data links a worker makes."""

from __future__ import annotations

from typing import Literal

import torch

from core.errors import ConfigError
from kv_transfer.link import LinkMaker
from kv_transfer.torch_link import TorchLinkMaker

Backend = Literal["auto", "gloo", "nccl", "memory"]


def make_links(backend: Backend, *, host: str, device: torch.device | str) -> LinkMaker:
    """The link maker of a worker process at `host` with its KV on `device`.

    auto: nccl for KV on a GPU, gloo otherwise. Raises ConfigError for what can't work here.
    """
    device = torch.device(device)
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    if backend == "memory":
        raise ConfigError("kv_transfer.backend=memory joins workers of one process only")
    if backend == "nccl" and device.type != "cuda":
        raise ConfigError(f"kv_transfer.backend=nccl needs KV on a GPU, not on {device}")
    return TorchLinkMaker(host=host, backend=backend, device=device)
