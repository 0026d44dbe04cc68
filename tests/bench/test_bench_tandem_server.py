"""Servers that a measurement starts: up when they say so, gone when it ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import fakes_openai_server
import pytest

from bench.client import OpenAIClient, ServerError, Target, with_model
from bench.tandem_server import parse_settings, serve_command, server_at, tandem_server
from core.clock import MonotonicClock
from core.config import load_config
from core.errors import ConfigError


def fake_command(settings: Mapping[str, str]) -> list[str]:
    program = str(Path(fakes_openai_server.__file__))
    return [sys.executable, program, settings["router.http_port"], "0"]


def test_a_server_is_asked_once_it_says_it_serves_and_is_gone_afterwards() -> None:
    async def run() -> tuple[str, str]:
        async with tandem_server({}, command=fake_command) as base_url:
            target = await with_model(Target(base_url), MonotonicClock())
        with pytest.raises(ServerError):
            await OpenAIClient(target, MonotonicClock()).first_model()
        return target.base_url, target.model

    base_url, model = asyncio.run(run())
    assert base_url.startswith("http://127.0.0.1:") and model == "fake"


def test_a_server_that_ends_before_it_serves_is_reported_with_what_it_said() -> None:
    def command(settings: Mapping[str, str]) -> list[str]:
        return [sys.executable, "-c", "print('no such model'); raise SystemExit(2)"]

    async def run() -> None:
        async with tandem_server({}, command=command):
            raise AssertionError("it never served")

    with pytest.raises(ServerError, match="no such model"):
        asyncio.run(run())


def test_a_server_that_takes_too_long_is_stopped_and_reported() -> None:
    def command(settings: Mapping[str, str]) -> list[str]:
        return [sys.executable, "-c", "import threading; threading.Event().wait()"]

    async def run() -> None:
        async with tandem_server({}, start_timeout_s=0.05, command=command):
            raise AssertionError("it never served")

    with pytest.raises(ServerError, match=r"over 0\.05 s"):
        asyncio.run(run())


def test_a_given_server_is_used_as_it_is() -> None:
    async def run() -> str:
        async with server_at("http://host:1/", {}) as base_url:
            return base_url

    assert asyncio.run(run()) == "http://host:1"


def test_the_command_line_sets_what_the_configuration_then_holds() -> None:
    settings = parse_settings(["kv_transfer.overlap=false", "parallel.num_threads=2"])
    command = serve_command(settings)
    assert command[1:4] == ["-m", "cli.main", "serve"]
    config = load_config(overrides=[text for text in command if "=" in text], environ={})
    assert (config.kv_transfer.overlap, config.parallel.num_threads) == (False, 2)


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="overlap"):
        parse_settings(["kv_transfer.overlap"])
