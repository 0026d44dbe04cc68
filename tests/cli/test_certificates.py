"""`tandem certificates create`: two commands make a cluster's certificates."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from cli.certificate_authority import create_certificates
from cli.main import build_app
from core.config import TlsConfig
from core.errors import ConfigError
from protos.certificate_files import peer_certificates


def create(directory: Path, *options: str) -> str:
    result = CliRunner().invoke(build_app(), ["certificates", "create", str(directory), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_what_it_prints_are_settings_that_work(tmp_path: Path) -> None:
    printed = create(tmp_path / "tls", "--name", "kv.example")
    settings = tomllib.loads(printed[printed.index("[tls]") :])
    assert settings["tls"]["server_name"] == "kv.example"
    assert peer_certificates(TlsConfig(**settings["tls"])) is not None


def test_only_the_owner_may_read_keys(tmp_path: Path) -> None:
    create(tmp_path / "tls")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "tls").iterdir()}
    assert modes == {
        "ca-key.pem": 0o600,
        "node-key.pem": 0o600,
        "ca.pem": 0o644,
        "node.pem": 0o644,
    }
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700


def test_a_second_time_renews_the_node_and_keeps_the_authority(tmp_path: Path) -> None:
    create(tmp_path, "--days", "2")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    create(tmp_path, "--days", "30", "--also-for", "10.0.0.7", "--also-for", "gw.example")
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"node.pem", "node-key.pem"}
    node = x509.load_pem_x509_certificate(after["node.pem"])
    names = node.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["tandem", "gw.example"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    assert 29 < (node.not_valid_after_utc - node.not_valid_before_utc).days <= 30


def test_an_authority_without_its_key_is_not_replaced(tmp_path: Path) -> None:
    create(tmp_path)
    (tmp_path / "ca-key.pem").unlink()
    with pytest.raises(ConfigError, match=r"ca-key\.pem is needed"):
        create_certificates(tmp_path, name="tandem", days=1.0)


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write certificates"):
        create_certificates(tmp_path / "file", name="tandem", days=1.0)
    with pytest.raises(ConfigError, match="valid for some time"):
        create_certificates(tmp_path, name="tandem", days=0.0)
