"""Which kind of data links a worker makes."""

from __future__ import annotations

import logging
from typing import Literal

import torch

from core.errors import ConfigError
from kv_transfer.link import LinkMaker
from kv_transfer.nearest_link import NearestLinkMaker
from kv_transfer.secure_link import SecureLinkMaker
from kv_transfer.shared_link import SharedLinkMaker
from kv_transfer.shared_memory import IS_SUPPORTED
from kv_transfer.tcp_link import TcpLinkMaker
from kv_transfer.torch_link import TorchLinkMaker
from protos.certificate_files import CertificateFiles, PeerTls

Backend = Literal["auto", "shm", "tcp", "gloo", "tls", "nccl", "memory"]

_LOG = logging.getLogger(__name__)


def make_links(
    backend: Backend,
    *,
    host: str,
    device: torch.device | str,
    certificates: CertificateFiles[PeerTls] | None = None,
) -> LinkMaker:
    """The link maker of a worker process at `host` with its KV on `device`.

    auto: TLS with certificates, else nccl for KV on a GPU, TCP otherwise; and for KV on the host
    shared memory before either, where both ends are on one machine. Raises ConfigError for what
    can't work here.
    """
    device = torch.device(device)
    match backend:
        case "memory":
            raise ConfigError("kv_transfer.backend=memory joins workers of one process only")
        case "nccl" if device.type != "cuda":
            raise ConfigError(f"kv_transfer.backend=nccl needs KV on a GPU, not on {device}")
        case "tls" if certificates is None:
            raise ConfigError("kv_transfer.backend=tls needs tls.*")
        case "shm" if not IS_SUPPORTED:
            raise ConfigError("kv_transfer.backend=shm needs Linux")
        case "shm":
            return SharedLinkMaker()
        case "tcp" | "gloo" | "nccl" if certificates is not None:
            _LOG.warning(
                "kv_transfer.backend=%s is not protected by tls.*: who is on the network of %s can "
                "read and write KV",
                backend,
                host,
            )
    if backend in ("auto", "tls") and certificates is not None:
        network: LinkMaker = SecureLinkMaker(host=host, certificates=certificates)
    elif backend == "tcp" or (backend == "auto" and device.type != "cuda"):
        network = TcpLinkMaker(host=host)
    else:
        network = TorchLinkMaker(host=host, backend="gloo" if backend == "gloo" else "nccl")
    if backend != "auto" or device.type == "cuda" or not IS_SUPPORTED:
        return network
    return NearestLinkMaker(SharedLinkMaker(), network)
