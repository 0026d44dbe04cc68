"""Which kind of data links a worker makes."""

from __future__ import annotations

import logging
from typing import Literal

import torch

from core.errors import ConfigError
from kv_transfer.link import LinkMaker
from kv_transfer.secure_link import SecureLinkMaker
from kv_transfer.torch_link import TorchLinkMaker
from protos.certificate_files import CertificateFiles, PeerTls

Backend = Literal["auto", "gloo", "nccl", "memory"]


_LOG = logging.getLogger(__name__)


def make_links(
    backend: Backend,
    *,
    host: str,
    device: torch.device | str,
    certificates: CertificateFiles[PeerTls] | None = None,
) -> LinkMaker:
    """The link maker of a worker process at `host` with its KV on `device`.

    auto: TLS with certificates, else nccl for KV on a GPU, gloo otherwise. Raises ConfigError for
    what can't work here.
    """
    device = torch.device(device)
    if certificates is not None:
        if backend == "auto":
            return SecureLinkMaker(host=host, certificates=certificates)
        _LOG.warning(
            "kv_transfer.backend=%s is not protected by tls.*: whoever reaches the data ports of "
            "%s can read and write KV",
            backend,
            host,
        )
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    if backend == "memory":
        raise ConfigError("kv_transfer.backend=memory joins workers of one process only")
    if backend == "nccl" and device.type != "cuda":
        raise ConfigError(f"kv_transfer.backend=nccl needs KV on a GPU, not on {device}")
    return TorchLinkMaker(host=host, backend=backend, device=device)
