"""Makers of links by name, for tests of what all kinds have in common; and messages they take."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fakes_certificates import certificates_in

from core.config import TlsConfig
from kv_transfer.link import DataLink, LinkMaker
from kv_transfer.memory_link import MemoryLinkMaker
from kv_transfer.nearest_link import NearestLinkMaker
from kv_transfer.secure_link import SecureLinkMaker
from kv_transfer.shared_link import SharedLinkMaker
from kv_transfer.torch_link import TorchLinkMaker

HOST = "127.0.0.1"
PATIENCE_S = 60.0


def gloo() -> LinkMaker:
    return TorchLinkMaker(host=HOST, backend="gloo")


def nearest() -> LinkMaker:
    return NearestLinkMaker(SharedLinkMaker(), gloo())


def link_maker(kind: str, tls: TlsConfig | None = None) -> LinkMaker:
    """memory, gloo, secure, shared or nearest; `tls` is needed for secure links alone."""
    if kind == "secure":
        assert tls is not None
        return SecureLinkMaker(host=HOST, certificates=certificates_in(tls))
    makers: dict[str, Callable[[], LinkMaker]] = {
        "memory": MemoryLinkMaker,
        "gloo": gloo,
        "shared": SharedLinkMaker,
        "nearest": nearest,
    }
    return makers[kind]()


def put(sending: DataLink, *messages: torch.Tensor) -> list[torch.Tensor]:
    """The messages, in the memory that this link sends from. Once for each link."""
    memory = sending.share(sum(message.nbytes for message in messages), PATIENCE_S)
    if memory is None:
        return list(messages)
    placed, end = [], 0
    for message in messages:
        begin, end = end, end + message.nbytes
        placed.append(memory[begin:end].view(message.dtype).view(message.shape).copy_(message))
    return placed
