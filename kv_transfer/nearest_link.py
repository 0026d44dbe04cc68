"""Links through shared memory where both ends are on one machine, over the network elsewhere.

P says in the welcome how it is reached both ways, and waits both ways. D tries the near one, which
is decided at once by the kernel: nobody of that name and user is there, or the connection stands.
A near peer that then stays silent is stopped, and no reason to take the other way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from core.errors import TransferError
from kv_transfer.link import DataLink, LinkMaker, Rendezvous

_LOG = logging.getLogger(__name__)


class NearestLinkMaker:
    """Makes links of two other makers. Thread-safe. `near` says where it waits in `local` alone."""

    def __init__(self, near: LinkMaker, network: LinkMaker) -> None:
        self._near = near
        self._network = network

    def host(self) -> Rendezvous:
        return replace(self._network.host(), local=self._near_name())

    def accept(self, name: str, timeout_s: float) -> DataLink:
        """D comes one way; the other one is then given up."""
        if not self._near_name():
            return self._network.accept(name, timeout_s)
        far = _Accepting(self._network, name, timeout_s, on_end=lambda: self._near.abandon(name))
        try:
            return self._near.accept(name, timeout_s)
        except TransferError as error:
            return far.link_or(far.error or error)
        finally:
            self._network.abandon(name)

    def abandon(self, name: str) -> None:
        self._network.abandon(name)
        self._near.abandon(name)

    def dial(self, rendezvous: Rendezvous, name: str, timeout_s: float) -> DataLink:
        if rendezvous.local:
            try:
                return self._near.dial(rendezvous, name, timeout_s)
            except TransferError as error:
                if error.reason != "incompatible":
                    raise
                _LOG.info("a KV link takes the network: %s", error.message)
        return self._network.dial(rendezvous, name, timeout_s)

    def close(self) -> None:
        self._near.close()
        self._network.close()

    def _near_name(self) -> str:
        """Empty where the system gives us no near way."""
        try:
            return self._near.host().local
        except TransferError as error:
            _LOG.debug("all KV links take the network: %s", error.message)
            return ""


class _Accepting:
    """Waits for D in a thread of its own; whatever comes of it, `on_end` is called then."""

    def __init__(
        self, maker: LinkMaker, name: str, timeout_s: float, *, on_end: Callable[[], None]
    ) -> None:
        self.error: TransferError | None = None
        self._link: DataLink | None = None
        self._thread = threading.Thread(
            target=self._accept,
            args=(maker, name, timeout_s, on_end),
            name="tandem-kv-accept",
            daemon=True,
        )
        self._thread.start()

    def link_or(self, error: TransferError) -> DataLink:
        """The link, once all is decided; raises `error` if there is none."""
        self._thread.join()
        if self._link is None:
            raise error
        return self._link

    def _accept(
        self, maker: LinkMaker, name: str, timeout_s: float, on_end: Callable[[], None]
    ) -> None:
        try:
            self._link = maker.accept(name, timeout_s)
        except TransferError as error:
            self.error = error
        on_end()
