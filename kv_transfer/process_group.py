"""Process groups of torch.distributed, built directly on a store: gloo and NCCL.

host    one TCPStore for each process that others join, bound to one address only
name    a prefix of its keys, so that groups on one store never see each other
group   every rank with the same name and size; making it waits for all of them
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore, Work

from core.config import library_setting

_NCCL_FAILURES, _ARE_LEFT_ALONE = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"
_BEYOND_ALL_DEADLINES = timedelta(minutes=10)


class Group(Protocol):
    """What ProcessGroupGloo and ProcessGroupNCCL have in common, as far as we use it."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work: ...
    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work: ...
    def allreduce(self, tensors: list[torch.Tensor], /) -> Work: ...
    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], /
    ) -> Work: ...
    def abort(self) -> None: ...
    def set_timeout(self, timeout: timedelta) -> None: ...


class _GlooOptions(Protocol):
    _devices: list[object]
    _timeout: timedelta
    _threads: int


class _GlooApi(Protocol):
    """ProcessGroupGloo as it is; torch's type stubs know another one."""

    def _Options(self) -> _GlooOptions: ...
    def create_device(self, *, hostname: str) -> object: ...
    def __call__(self, store: Store, rank: int, size: int, options: _GlooOptions) -> Group: ...


def host_store(host: str) -> tuple[TCPStore, int]:
    """A store that listens on this address only, and its port; torch would bind all addresses."""
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen()
        port: int = listener.getsockname()[1]
        store = TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.fileno(),
        )
        listener.detach()  # it belongs to the store now
    return store, port


def connect_store(host: str, port: int, name: str, timeout: timedelta) -> Store:
    """The keys of `name` in a hosted store. Raises RuntimeError if nobody answers in time."""
    client = TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    return PrefixStore(name, client)


def gloo_group(store: Store, rank: int, size: int, *, host: str, timeout: timedelta) -> Group:
    """Between CPUs; this rank's connections are bound to `host`."""
    gloo = cast(_GlooApi, ProcessGroupGloo)
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=host)]
    options._timeout = timeout
    options._threads = 1  # collectives are waited for one by one
    return gloo(store, rank, size, options)


def nccl_group(store: Store, rank: int, size: int, *, timeout: timedelta) -> Group:
    """Between GPUs, for collectives: torch ends the process when one fails or takes too long.

    Absent from builds of torch without CUDA, hence imported here.
    """
    from torch._C._distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return cast(Group, ProcessGroupNCCL(store, rank, size, options))


def nccl_group_of_a_link(store: Store, rank: int) -> Group:
    """Of two GPUs, whose failures are their link's alone: torch doesn't end the process for them.

    torch reads from the environment what becomes of that, whenever it makes a group. Its own
    watchdog is to find nothing late: deadlines are the link's.
    """
    with library_setting(_NCCL_FAILURES, _ARE_LEFT_ALONE):
        return nccl_group(store, rank, 2, timeout=_BEYOND_ALL_DEADLINES)
