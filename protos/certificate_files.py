"""Certificates in files: read and checked at the start, and again when they are replaced.

start      whatever is wrong is a ConfigError that names the setting
later      who connects next gets what the files hold by then; if that is wrong, or half replaced,
           the last good certificates stay, with a warning
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from core.config import RouterConfig, TlsConfig
from core.errors import ConfigError

_LOG = logging.getLogger(__name__)

_FLIGHTS = 4
"""Rounds of a handshake in memory; TLS 1.3 needs two."""


@dataclass(frozen=True, slots=True)
class PemFile:
    """A file, and the setting that names it."""

    setting: str
    path: str

    def read(self) -> bytes:
        """Raises ConfigError."""
        try:
            return Path(self.path).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{self.setting}: cannot read {self.path}: {error.strerror}"
            ) from None


@dataclass(frozen=True, slots=True)
class PeerTls:
    """What one of our processes needs to be a server and a client of the others."""

    ca: bytes
    certificate: bytes
    key: bytes
    server_context: ssl.SSLContext
    client_context: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class FrontTls:
    """What the public servers need. `client_ca`: who signs for clients, if they must show that."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext
    """For HTTP, which asks no client for a certificate."""


T = TypeVar("T")


class CertificateFiles(Generic[T]):
    """What `build` makes of the files as they are now. Thread-safe."""

    def __init__(
        self, files: Sequence[PemFile], build: Callable[[Sequence[bytes]], T], *, name: str = ""
    ) -> None:
        """`name`: the DNS name that certificates are for. Raises ConfigError."""
        self.name = name
        self._files = files
        self._build = build
        self._lock = threading.Lock()
        self._contents, self._built = self._load()
        self._refused: list[bytes] | None = None

    def current(self) -> T:
        """Never raises: certificates that are wrong replace none."""
        with self._lock:
            try:
                contents = self._read()
                if contents not in (self._contents, self._refused):
                    self._refused = contents
                    self._contents, self._built = self._load()
                    _LOG.info("%s and the files beside it were replaced", self._files[0].path)
            except ConfigError as error:
                _LOG.warning("the certificates in use stay: %s", error.message)
            return self._built

    def _load(self) -> tuple[list[bytes], T]:
        contents = self._read()
        built = self._build(contents)
        if self._read() != contents:
            raise ConfigError(f"{self._files[0].setting}: the files are just being replaced")
        return contents, built

    def _read(self) -> list[bytes]:
        return [file.read() for file in self._files]


def peer_certificates(config: TlsConfig) -> CertificateFiles[PeerTls] | None:
    """For talk between our own processes; None: it is plain. Raises ConfigError."""
    if config.ca is None or config.certificate is None or config.key is None:
        return None
    ca = PemFile("tls.ca", config.ca)
    certificate = PemFile("tls.certificate", config.certificate)
    key = PemFile("tls.key", config.key)

    def build(contents: Sequence[bytes]) -> PeerTls:
        server = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key)
        client = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key)
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            _trust(context, ca)
        server.num_tickets = 0  # a data link is never resumed
        _rehearse(server, client, config.server_name, certificate)
        ca_pem, certificate_pem, key_pem = contents
        return PeerTls(ca_pem, certificate_pem, key_pem, server, client)

    return CertificateFiles((ca, certificate, key), build, name=config.server_name)


def front_certificates(config: RouterConfig) -> CertificateFiles[FrontTls] | None:
    """For the public servers; None: they are plain. Raises ConfigError."""
    if config.tls_certificate is None or config.tls_key is None:
        return None
    files = [
        PemFile("router.tls_certificate", config.tls_certificate),
        PemFile("router.tls_key", config.tls_key),
    ]
    if config.tls_client_ca is not None:
        files.append(PemFile("router.tls_client_ca", config.tls_client_ca))

    def build(contents: Sequence[bytes]) -> FrontTls:
        certificate, key, *client_ca = contents
        context = _context(ssl.PROTOCOL_TLS_SERVER, files[0], files[1])
        if client_ca:
            _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files[2])
        return FrontTls(certificate, key, client_ca[0] if client_ca else None, context)

    return CertificateFiles(files, build)


def _context(protocol: int, certificate: PemFile, key: PemFile) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    try:
        context.load_cert_chain(certificate.path, key.path, password="")
    except OSError as error:  # ssl.SSLError is one
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            message = f"{key.setting}: {key.path} is not the key of {certificate.path}"
        else:
            message = (
                f"{certificate.setting}, {key.setting}: {certificate.path} and {key.path} are not "
                "a certificate and its unencrypted key in PEM"
            )
        raise ConfigError(message) from None
    return context


def _trust(context: ssl.SSLContext, ca: PemFile) -> None:
    try:
        context.load_verify_locations(ca.path)
    except OSError:
        raise ConfigError(f"{ca.setting}: {ca.path} has no certificate in PEM") from None


def _rehearse(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str, certificate: PemFile
) -> None:
    """A handshake with ourselves, in memory: what fails here would fail with everybody.

    Raises ConfigError: expired, of another authority, for another name or another use.
    """
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    )
    try:
        for _ in range(_FLIGHTS):
            waiting = [end for end in ends if not _is_done(end)]
        assert not waiting, "more rounds than a handshake has"
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"tls.certificate: {certificate.path} with tls.ca and tls.server_name={name}: "
            f"{error.verify_message}"
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(f"tls.certificate: {certificate.path}: {error.reason}") from None


def _is_done(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
