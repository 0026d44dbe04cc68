"""The right to run one batch, kept up while it is run."""

from __future__ import annotations

import dataclasses
import logging

from core.clock import Clock
from core.errors import TandemError
from state.batches import BatchRecord, BatchStore
from state.store import StoreUnavailableError

log = logging.getLogger(__name__)


class LeaseLostError(TandemError):
    """Somebody else runs the batch now, or may."""

    code = "lease_lost"


class Lease:
    """One epoch of one batch."""

    def __init__(
        self,
        store: BatchStore,
        batch_id: str,
        epoch: int,
        *,
        ttl_s: float,
        asked: float,
        clock: Clock,
    ) -> None:
        """`asked` is the clock's time at which it was asked for."""
        self.batch_id = batch_id
        self.epoch = epoch
        self.ttl_s = ttl_s
        self._store = store
        self._clock = clock
        self._good_until = asked + ttl_s

    async def keep(self, record: BatchRecord) -> BatchRecord:
        """Renews it and writes down how far the batch is; what is stored now, wishes included.

        A store that is away is no matter until the lease runs out. Raises LeaseLostError.
        """
        asked = self._clock.now()
        try:
            if not await self._store.renew(self.batch_id, self.epoch, ttl_s=self.ttl_s):
                raise LeaseLostError(f"{self.batch_id} is run by somebody else")
            self._good_until = asked + self.ttl_s
            await self.write(record)
            stored = await self._store.get_batch(self.batch_id)
        except StoreUnavailableError as error:
            if self._clock.now() >= self._good_until:
                raise LeaseLostError(f"the lease of {self.batch_id} ran out: {error}") from None
            log.warning("%s: %s", self.batch_id, error.message)
            return record
        if stored is None or stored.cancelling_at is None:
            return record
        return dataclasses.replace(record, status=stored.status, cancelling_at=stored.cancelling_at)

    async def write(self, record: BatchRecord) -> None:
        """Raises LeaseLostError, StoreUnavailableError."""
        if not await self._store.update(record, self.epoch):
            raise LeaseLostError(f"{self.batch_id} is run by somebody else")

    async def release(self) -> None:
        """Others may take it at once."""
        try:
            await self._store.release(self.batch_id, self.epoch)
        except StoreUnavailableError as error:
            log.warning("%s: %s", self.batch_id, error.message)
