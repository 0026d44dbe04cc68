"""Settings as the command line takes, prints and documents them."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import fakes_process
from fakes_process import tandem

from cli.config_reference import reference_markdown
from cli.config_toml import to_toml
from cli.options import load
from cli.serve import serve_config
from core.config import Config, load_config


def test_flags_win_over_set_and_absent_flags_change_nothing() -> None:
    config = load(None, ["router.http_port=1", "router.grpc_port=2"], router__http_port=3)
    assert (config.router.http_port, config.router.grpc_port) == (3, 2)
    assert load(None, ["model.model=x"], model__model=None).model.model == "x"


def test_combined_leaves_decode_workers_alone() -> None:
    config = serve_config(Config(), combined=True)
    assert config.router.mode == "combined"
    assert config.cluster.num_prefill_workers == 0
    assert config.cluster.num_decode_workers == 1
    assert serve_config(Config(), combined=False) == Config()


def test_a_printed_configuration_can_be_read_back(tmp_path: Path) -> None:
    settings = ['model.model=a "quoted" ünïcode', "kv_transfer.overlap=false", "cache.num_blocks=9"]
    config = load_config(environ={}, overrides=settings)
    file = tmp_path / "tandem.toml"
    file.write_text(to_toml(config))
    assert load_config(file=file, environ={}) == config


def test_a_printed_configuration_leaves_the_token_out() -> None:
    config = load_config(environ={}, overrides=["model.hub_token=hf_secret"])
    assert "hf_secret" not in to_toml(config)
    assert "hub_token" not in tomllib.loads(to_toml(config))["model"]


def test_the_reference_names_every_setting_with_its_default_and_environment() -> None:
    page = reference_markdown()
    for section, entries in Config().model_dump().items():
        for key in entries:
            assert f"### `{section}.{key}`" in page
            assert f"`TANDEM_{section.upper()}__{key.upper()}`" in page
    assert "Type: integer, at least 0, at most 65535. Default: `8000`." in page
    assert "Type: `8`, `16`, `32`, `64`, `128`. Default: `16`." in page
    assert "Type: text or unset. Default: unset." in page


def test_the_committed_reference_is_up_to_date() -> None:
    committed = fakes_process.ROOT / "docs" / "CONFIGURATION.md"
    assert committed.read_text() == reference_markdown(), "run `make docs`"


def test_an_outdated_reference_fails_the_check(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for text, status in ((reference_markdown(), 0), ("old", 1)):
        page.write_text(text)
        finished = subprocess.run(
            tandem("config", "--reference", "--check", str(page)),
            capture_output=True,
            text=True,
            cwd=fakes_process.ROOT,
            timeout=fakes_process.DEADLINE_S,
        )
        assert finished.returncode == status
