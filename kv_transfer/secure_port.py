"""Data ports over TLS: a stranger fails at the certificate, before anything of it is read.

TLS 1.3, certificates of one authority on both sides; then as link_port.py says.
"""

from __future__ import annotations

import contextlib
import socket
import ssl

from kv_transfer.connection_maker import listen_at, send_at_once
from kv_transfer.link_port import LinkPort, show
from protos.certificate_files import CertificateFiles, PeerTls

SecurePort = LinkPort[ssl.SSLSocket]


def listen_securely(host: str, certificates: CertificateFiles[PeerTls]) -> tuple[SecurePort, int]:
    """Waits for links at `host`, and says at which port. Raises OSError."""

    def screen(raw: socket.socket) -> ssl.SSLSocket:
        send_at_once(raw)
        context = certificates.current().server_context
        return context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False)

    listener, port = listen_at(host)
    return LinkPort(listener, screen, ssl.SSLSocket.do_handshake), port


def dial_secure(
    address: tuple[str, int],
    name: str,
    certificates: CertificateFiles[PeerTls],
    timeout_s: float,
) -> ssl.SSLSocket:
    """A connection to where `name` is awaited. Raises OSError: ssl.SSLCertVerificationError if
    nobody is there whom we trust, ConnectionError if we are not welcome."""
    context = certificates.current().client_context
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(socket.create_connection(address, timeout_s))
        send_at_once(raw)
        connection = context.wrap_socket(raw, server_hostname=certificates.name)
        stack.enter_context(connection)
        show(connection, name)
        stack.pop_all()
    return connection
