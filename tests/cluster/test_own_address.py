"""Which address a worker announces."""

from __future__ import annotations

import socket

from cluster.own_address import own_address, with_own_address
from core.config import Config, load_config


def test_auto_becomes_an_address_of_this_machine_that_others_can_reach() -> None:
    config = with_own_address(load_config(environ={}, overrides=["worker.host=auto"]))
    assert config.worker.host == own_address()
    with socket.socket() as listener:
        listener.bind((config.worker.host, 0))  # fails for an address that isn't ours


def test_a_named_address_is_kept() -> None:
    assert with_own_address(Config()) == Config()
