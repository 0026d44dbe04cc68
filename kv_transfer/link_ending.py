"""How a link over one connection ends: for one reason, which everybody hears who waits on it."""

from __future__ import annotations

import socket
import threading

from core.errors import TransferError
from kv_transfer.link_port import cut


class LinkEnding:
    """Thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._reason: tuple[str, str] | None = None
        """Message and reason: an error that is raised keeps alive whatever it has passed."""

    def raise_if_over(self) -> None:
        if self._reason is not None:
            raise _error(*self._reason)

    def end(self, message: str, reason: str) -> TransferError:
        """All that is under way fails; -> for the first reason that there was."""
        with self._lock:
            if self._reason is None:
                self._reason = message, reason
                cut(self._connection)
            return _error(*self._reason)

    def abort(self) -> None:
        """Ends it from this side."""
        self.end("the link was ended here", "peer_lost")

    def close(self) -> None:
        """Closes the connection, for whoever owns the link."""
        self.abort()
        with self._lock:  # `end` must not shut down what gets the same number next
            self._connection.close()


def _error(message: str, reason: str) -> TransferError:
    return TransferError(f"data link: {message}", reason=reason)
