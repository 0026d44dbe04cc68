"""This machine's own address on the network, for `worker.host = auto`."""

from __future__ import annotations

import socket
from collections.abc import Callable

from core.config import Config
from core.errors import ConfigError

AUTO = "auto"
_ELSEWHERE = ("192.0.2.1", 9)
"""An address reserved for documentation: nothing is sent to it, only a route is looked up."""


def with_own_address(config: Config, find: Callable[[], str] | None = None) -> Config:
    """The configuration with `auto` replaced by an address that other machines can reach.

    `find` says which, where something knows better than `own_address`.
    """
    if config.worker.host != AUTO:
        return config
    worker = config.worker.model_copy(update={"host": (find or own_address)()})
    return config.model_copy(update={"worker": worker})


def own_address() -> str:
    """The address this machine would use to reach others. Raises ConfigError if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError as error:
            raise ConfigError(
                f"worker.host = 'auto': this machine has no route to others ({error.strerror}); "
                "name its address"
            ) from None
        address: str = probe.getsockname()[0]
        return address
