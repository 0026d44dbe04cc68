"""Whether the router's ports are free, asked before minutes are spent on everything else."""

from __future__ import annotations

import socket

from core.config import RouterConfig
from core.errors import ConfigError


def check_ports(router: RouterConfig) -> None:
    """Raises ConfigError that names the setting whose address can't be bound now."""
    for setting, host, port in (
        ("router.http_port", router.http_host, router.http_port),
        ("router.grpc_port", router.grpc_host, router.grpc_port),
        ("router.admin_port", router.admin_host, router.admin_port),
    ):
        if port:
            _check(setting, host, port)


def _check(setting: str, host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the servers do it: connections that have just ended are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise ConfigError(
                f"{setting} = {port}: {error.strerror} on {host}; `tandem status` shows what is "
                f"served here, and 0 picks a free port"
            ) from None
