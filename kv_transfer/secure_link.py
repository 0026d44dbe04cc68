"""Links over TLS, for networks that others are on too: one connection for each data link.

gloo and NCCL can't keep strangers out (torch_link.py says what was found), so where there are
certificates, KV takes connections of its own. Each has a thread, because TLS has one state for both
directions and a message must be on its way while its sender packs the next.

frame   8 bytes of length, then the message; another length than expected ends the link
"""

from __future__ import annotations

import contextlib
import queue
import ssl
import struct
import threading

import torch

from core.errors import TransferError
from core.frames import read_exactly
from kv_transfer.connection_maker import ConnectionMaker
from kv_transfer.link import Pending, bytes_of
from kv_transfer.link_port import cut
from kv_transfer.secure_port import dial_secure, listen_securely
from protos.certificate_files import CertificateFiles, PeerTls

_BACKEND = "tls"
_LENGTH = struct.Struct("<Q")


class SecureLinkMaker(ConnectionMaker[ssl.SSLSocket]):
    """Makes TLS links for one process. Thread-safe."""

    def __init__(self, *, host: str, certificates: CertificateFiles[PeerTls]) -> None:
        def dial(at: tuple[str, int], name: str, timeout_s: float) -> ssl.SSLSocket:
            try:
                return dial_secure(at, name, certificates, timeout_s)
            except ssl.SSLCertVerificationError as error:
                message = f"a link to {at[0]}:{at[1]}: not to be trusted: {error.verify_message}"
                raise TransferError(message, reason="incompatible") from error

        super().__init__(
            backend=_BACKEND,
            host=host,
            listen=lambda: listen_securely(host, certificates),
            dial=dial,
            link=_SecureLink,
        )


class _SecureLink:
    """One end; its thread does what was started, in order."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        connection.settimeout(None)  # whoever waits has a deadline, and cuts the connection
        self._connection = connection
        self._lock = threading.Lock()
        self._ended: TransferError | None = None
        self._messages: queue.SimpleQueue[_SecurePending | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="tandem-kv-tls", daemon=True).start()

    def share(self, size_bytes: int, timeout_s: float) -> torch.Tensor | None:
        return None

    def send(self, message: torch.Tensor) -> Pending:
        return self._start(message, sending=True)

    def recv(self, buffer: torch.Tensor) -> Pending:
        return self._start(buffer, sending=False)

    def abort(self) -> None:
        self.end(TransferError("the link was ended here", reason="peer_lost"))

    def close(self) -> None:
        self.abort()

    def end(self, error: TransferError) -> None:
        """All that is under way fails with `error`, unless it has failed before."""
        with self._lock:
            if self._ended is not None:
                return
            self._ended = error
            cut(self._connection)
            self._messages.put(None)  # only now may the thread close the connection

    def _start(self, tensor: torch.Tensor, *, sending: bool) -> Pending:
        pending = _SecurePending(tensor, self, sending=sending)
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._messages.put(pending)
        return pending

    def _run(self) -> None:
        with self._connection:
            while (pending := self._messages.get()) is not None:
                try:
                    pending.move(self._connection)
                except TransferError as error:
                    self.end(error)
                except (OSError, ValueError) as error:  # ValueError: cut within a TLS record
                    self.end(TransferError(f"data link: {error}", reason="peer_lost"))
                pending.finish(self._ended)
            with contextlib.suppress(queue.Empty):
                while True:
                    left = self._messages.get_nowait()
                    if left is not None:
                        left.finish(self._ended)


class _SecurePending:
    """A message on its way; keeps its buffer alive."""

    def __init__(self, tensor: torch.Tensor, link: _SecureLink, *, sending: bool) -> None:
        self._payload = bytes_of(tensor)
        self._link = link
        self._sending = sending
        self._done = threading.Event()
        self._error: TransferError | None = None

    def wait(self, timeout_s: float) -> None:
        if not self._done.wait(timeout_s):
            error = TransferError(f"data link: nothing for {timeout_s:g} s", reason="timeout")
            self._link.end(error)
            raise error
        if self._error is not None:
            raise self._error

    def move(self, connection: ssl.SSLSocket) -> None:
        """Belongs to the link's thread. Raises OSError, TransferError."""
        view = self._payload.numpy().data
        if self._sending:
            connection.sendall(_LENGTH.pack(len(view)))
            connection.sendall(view)
            return
        (length,) = _LENGTH.unpack(read_exactly(connection, _LENGTH.size))
        if length != len(view):
            message = f"data link: {length} bytes came in place of {len(view)}"
            raise TransferError(message, reason="corrupt")
        while view:
            count = connection.recv_into(view)
            if not count:
                raise ConnectionError("the peer closed the connection")
            view = view[count:]

    def finish(self, error: TransferError | None) -> None:
        self._error = error
        self._done.set()
