"""Certificates in files: what is wrong is said at the start, and what is replaced is taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fakes_certificates import EXPIRES_AT_ONCE_DAYS, certificates_in, new_certificates

from core.config import RouterConfig, TlsConfig
from core.errors import ConfigError
from protos.certificate_files import front_certificates, peer_certificates


@pytest.fixture
def tls(tmp_path: Path) -> TlsConfig:
    return new_certificates(tmp_path / "ours")


def changed(tls: TlsConfig, **files: object) -> TlsConfig:
    return tls.model_copy(update={name: str(value) for name, value in files.items()})


def test_without_settings_there_are_no_certificates() -> None:
    assert peer_certificates(TlsConfig()) is None
    assert front_certificates(RouterConfig()) is None


@pytest.mark.parametrize("setting", ["ca", "certificate", "key"])
def test_a_file_that_is_not_there_is_named_with_its_setting(tls: TlsConfig, setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"tls\.{setting}: cannot read /nowhere/file\.pem"):
        peer_certificates(changed(tls, **{setting: "/nowhere/file.pem"}))


def test_a_key_of_another_certificate_is_refused(tls: TlsConfig, tmp_path: Path) -> None:
    other = new_certificates(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"tls\.key: .* is not the key of"):
        peer_certificates(changed(tls, key=other.key))


def test_a_file_of_something_else_is_refused(tls: TlsConfig, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"tls\.ca: .* has no certificate in PEM"):
        peer_certificates(changed(tls, ca=garbage))
    with pytest.raises(ConfigError, match=r"tls\.certificate, tls\.key: .* not a certificate"):
        peer_certificates(changed(tls, certificate=garbage))


def test_a_certificate_of_another_authority_is_refused(tls: TlsConfig, tmp_path: Path) -> None:
    other = new_certificates(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"tls\.certificate: .* unable to get local issuer"):
        peer_certificates(changed(tls, ca=other.ca))


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    tls = new_certificates(tmp_path / "old", days=EXPIRES_AT_ONCE_DAYS)
    with pytest.raises(ConfigError, match="certificate has expired"):
        peer_certificates(tls)


def test_a_certificate_for_another_name_is_refused(tls: TlsConfig) -> None:
    with pytest.raises(ConfigError, match=r"tls\.server_name=elsewhere: Hostname mismatch"):
        peer_certificates(changed(tls, server_name="elsewhere"))


def test_files_that_were_replaced_are_taken(tls: TlsConfig, tmp_path: Path) -> None:
    certificates = certificates_in(tls)
    before = certificates.current()
    assert certificates.current() is before
    new_certificates(tmp_path / "ours")
    after = certificates.current()
    assert after.certificate != before.certificate and after.ca == before.ca


def test_files_that_are_half_replaced_or_gone_change_nothing_until_they_are_whole(
    tls: TlsConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = certificates_in(tls)
    before = certificates.current()
    other = new_certificates(tmp_path / "other")
    assert other.certificate and other.key and other.ca
    assert tls.certificate and tls.key and tls.ca
    shutil.copy(other.certificate, tls.certificate)
    assert certificates.current() is before
    assert "the certificates in use stay" in caplog.text
    shutil.copy(other.key, tls.key)
    assert certificates.current() is before, "of an authority that is not ours"
    Path(tls.ca).unlink()
    assert certificates.current() is before
    shutil.copy(other.ca, tls.ca)
    assert certificates.current().certificate == Path(other.certificate).read_bytes()


def test_the_front_door_needs_no_authority_but_says_if_one_for_clients_is_none(
    tls: TlsConfig, tmp_path: Path
) -> None:
    front = RouterConfig(tls_certificate=tls.certificate, tls_key=tls.key)
    made = front_certificates(front)
    assert made is not None and made.current().client_ca is None
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"router\.tls_client_ca: .* has no certificate"):
        front_certificates(front.model_copy(update={"tls_client_ca": str(garbage)}))
