"""Makers of links by name, for tests of what all kinds have in common; and messages they take."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from fakes_certificates import certificates_in

from core.config import TlsConfig
from kv_transfer.link import DataLink, LinkMaker
from kv_transfer.memory_link import MemoryLinkMaker
from kv_transfer.nearest_link import NearestLinkMaker
from kv_transfer.secure_link import SecureLinkMaker
from kv_transfer.shared_link import SharedLinkMaker
from kv_transfer.tcp_link import TcpLinkMaker
from kv_transfer.torch_link import TorchLinkMaker

HOST = "127.0.0.1"
PATIENCE_S = 60.0
NAME = "a secret token/link/0"
SIZE = 1000
"""Bytes that are shared."""

Link = tuple[DataLink, DataLink]
"""P's and D's end."""


def gloo() -> LinkMaker:
    return TorchLinkMaker(host=HOST, backend="gloo")


def tcp() -> LinkMaker:
    return TcpLinkMaker(host=HOST)


def nearest() -> LinkMaker:
    return NearestLinkMaker(SharedLinkMaker(), tcp())


def link_maker(kind: str, tls: TlsConfig | None = None) -> LinkMaker:
    """memory, gloo, tcp, secure, shared or nearest; `tls` is needed for secure links alone."""
    if kind == "secure":
        assert tls is not None
        return SecureLinkMaker(host=HOST, certificates=certificates_in(tls))
    makers: dict[str, Callable[[], LinkMaker]] = {
        "memory": MemoryLinkMaker,
        "gloo": gloo,
        "tcp": tcp,
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


def join(maker: LinkMaker, name: str = NAME, dialer: LinkMaker | None = None) -> Link:
    with ThreadPoolExecutor(1) as threads:
        accepting = threads.submit(maker.accept, name, PATIENCE_S)
        receiving = (dialer or maker).dial(maker.host(), name, PATIENCE_S)
        return accepting.result(PATIENCE_S), receiving


def shared(link: Link) -> tuple[torch.Tensor, torch.Tensor]:
    """The same memory, as each end sees it."""
    here, there = (end.share(SIZE, PATIENCE_S) for end in link)
    assert here is not None and there is not None
    return here, there


def close(link: Link) -> None:
    for end in link:
        end.close()


def is_shared(link: Link) -> bool:
    ends = [end.share(SIZE, PATIENCE_S) for end in link]
    return all(memory is not None for memory in ends)


def random_bytes(size: int) -> torch.Tensor:
    return torch.randint(256, (size,), dtype=torch.uint8)


def heard_by_stranger(at: tuple[str, int], words: bytes) -> bytes:
    """What a stranger hears who says this; only a broken test waits for the deadline."""
    heard = b""
    with socket.create_connection(at, PATIENCE_S) as stranger, contextlib.suppress(OSError):
        stranger.sendall(words)
        stranger.shutdown(socket.SHUT_WR)
        while part := stranger.recv(4096):
            heard += part
    return heard
