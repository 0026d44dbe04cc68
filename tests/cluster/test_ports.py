"""A taken port is told before anything is started."""

from __future__ import annotations

import socket

import pytest

from cluster.ports import check_ports
from core.config import RouterConfig
from core.errors import ConfigError


@pytest.mark.parametrize("setting", ["http_port", "grpc_port"])
def test_a_taken_port_is_refused_by_the_name_of_its_setting(setting: str) -> None:
    others = {"http_port": 0, "grpc_port": 0}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"router\.{setting} = {port}: Address already"):
            check_ports(RouterConfig(**(others | {setting: port})))
    check_ports(RouterConfig(**(others | {setting: port})))


def test_free_ports_are_free_of_choice() -> None:
    check_ports(RouterConfig(http_port=0, grpc_port=0))
