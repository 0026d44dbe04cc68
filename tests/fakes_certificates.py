"""Certificates for tests, made as the command makes them."""

from __future__ import annotations

from pathlib import Path

from cli.certificate_authority import CA, CERTIFICATE, KEY, create_certificates
from core.config import TlsConfig
from protos.certificate_files import CertificateFiles, PeerTls, peer_certificates

EXPIRES_AT_ONCE_DAYS = 1e-9


def new_certificates(
    directory: Path, *, name: str = "tandem", days: float = 1.0, also_for: tuple[str, ...] = ()
) -> TlsConfig:
    """Settings with files in `directory`, which has an authority of its own from then on."""
    create_certificates(directory, name=name, days=days, also_for=also_for)
    return TlsConfig(
        ca=str(directory / CA), certificate=str(directory / CERTIFICATE), key=str(directory / KEY)
    )


def certificates_in(tls: TlsConfig) -> CertificateFiles[PeerTls]:
    certificates = peer_certificates(tls)
    assert certificates is not None
    return certificates


def settings_of(tls: TlsConfig) -> list[str]:
    """As overrides: `section.key=value`."""
    return [f"tls.{name}={value}" for name, value in tls.model_dump().items()]
