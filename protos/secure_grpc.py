"""gRPC between our processes: plain, or with mutual TLS where there are certificates."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar, cast

import grpc
import grpc.aio

from core.errors import ConfigError
from protos.certificate_files import CertificateFiles, FrontTls, PeerTls

_LOG = logging.getLogger(__name__)

Options: TypeAlias = Sequence[tuple[str, int | str]]
PeerCertificates: TypeAlias = CertificateFiles[PeerTls] | None
"""None: plain."""
T = TypeVar("T")


def open_channel(
    address: str, certificates: PeerCertificates, options: Options = ()
) -> grpc.aio.Channel:
    """A channel to one of our processes, with the certificates as they are now.

    Whoever answers must have one of the same authority, for the name that all of ours are for.
    """
    if certificates is None:
        return grpc.aio.insecure_channel(address, options=list(options))
    tls = certificates.current()
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    named = [*options, ("grpc.ssl_target_name_override", certificates.name)]
    return grpc.aio.secure_channel(address, credentials, options=named)


def bind_peers(server: grpc.aio.Server, address: str, certificates: PeerCertificates) -> int:
    """The bound port; with certificates, callers must have one of the same authority.

    Raises ConfigError if the address is taken or not ours.
    """
    if certificates is None:
        return _bind(server, address, None)
    return _bind(server, address, _replaceable(certificates, _of_peer, client_certificates=True))


def bind_front(
    server: grpc.aio.Server, address: str, certificates: CertificateFiles[FrontTls] | None
) -> int:
    """The same for the public server, whose clients need certificates only if so configured."""
    if certificates is None:
        return _bind(server, address, None)
    asked = certificates.current().client_ca is not None
    return _bind(server, address, _replaceable(certificates, _of_front, client_certificates=asked))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that binds `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError:  # its text only says how to make the library log more
        raise ConfigError(
            f"cannot serve gRPC on {address}: the address is taken or not ours"
        ) from None


def _replaceable(
    certificates: CertificateFiles[T],
    configure: Callable[[T], grpc.ServerCertificateConfiguration],
    *,
    client_certificates: bool,
) -> grpc.ServerCredentials:
    """Credentials that every new connection looks up."""
    last = certificates.current()

    def look() -> grpc.ServerCertificateConfiguration | None:
        nonlocal last
        now = certificates.current()
        if now is last:
            return None
        last = now
        return configure(now)

    # The stubs know no None, which means that nothing has changed
    fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], look)
    return grpc.dynamic_ssl_server_credentials(configure(last), fetch, client_certificates)


def _of_peer(tls: PeerTls) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], tls.ca)


def _of_front(tls: FrontTls) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], tls.client_ca)
