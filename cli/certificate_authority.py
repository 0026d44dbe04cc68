"""A certificate authority for one cluster, and certificates that it signs; written as PEM files."""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from core.errors import ConfigError

CA, CA_KEY, CERTIFICATE, KEY = "ca.pem", "ca-key.pem", "node.pem", "node-key.pem"

_CLOCK_SKEW = timedelta(minutes=5)
"""Other machines' clocks may be behind."""


def create_certificates(
    directory: Path, *, name: str, days: float, also_for: tuple[str, ...] = ()
) -> bool:
    """Writes a node's certificate and key, and an authority if there is none in `directory` yet.

    `name` and `also_for` are the DNS names, or addresses, that the certificate is for. An authority
    lives ten times as long, a day at least. Returns whether there was one. Raises ConfigError.
    """
    if days <= 0:
        raise ConfigError("certificates must be valid for some time")
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = (directory / CA).exists()
        if known and not (directory / CA_KEY).exists():
            raise ConfigError(f"{directory / CA_KEY} is needed to sign for {directory / CA}")
        if known:
            ca = x509.load_pem_x509_certificate((directory / CA).read_bytes())
            ca_key = _load_key(directory / CA_KEY)
        else:
            ca, ca_key = _make_authority(max(days * 10, 1.0))
            _write(directory / CA_KEY, _pem_of(ca_key), secret=True)
            _write(directory / CA, ca.public_bytes(Encoding.PEM))
        certificate, key = _sign(ca, ca_key, (name, *also_for), days)
        _write(directory / KEY, _pem_of(key), secret=True)
        _write(directory / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
    except OSError as error:
        raise ConfigError(f"cannot write certificates to {directory}: {error.strerror}") from None
    return known


def _make_authority(days: float) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Tandem cluster authority")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _builder(name, name, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return builder.sign(key, hashes.SHA256()), key


def _sign(
    ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, names: tuple[str, ...], days: float
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(subject, ca.subject, key.public_key(), days)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
    )
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
    )
    return builder.sign(ca_key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _CLOCK_SKEW,
        not_valid_after=now + timedelta(days=days),
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is not a key that `tandem certificates create` has made")
    return key


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Replaces the file in one step: who reads it meanwhile sees the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    mode = 0o600 if secret else 0o644
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    fresh.replace(path)
