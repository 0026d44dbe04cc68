"""Takes open batches whose lease nobody holds and runs them, a few side by side."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter

from core.clock import Clock
from core.errors import TandemError
from router.batch.lease import Lease, LeaseLostError
from router.batch.library import Library
from router.batch.run import BatchRun, RunParts
from state.store import StoreUnavailableError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
SWEEP_EVERY_S = 60.0
PAUSE_S = 30.0
"""Before a batch that could not be run here is tried here again."""
MAX_LOOKED_AT = 64


class BatchRunner:
    """Lives on one event loop, from `run` to `close`."""

    def __init__(
        self, parts: RunParts, library: Library, clock: Clock, *, lease_s: float, max_running: int
    ) -> None:
        self._parts = parts
        self._library = library
        self._clock = clock
        self._lease_s = lease_s
        self._max_running = max_running
        self._running: dict[str, BatchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._not_before: dict[str, float] = {}
        self._foreign: set[str] = set()
        """Of models that this router doesn't serve."""
        self._news = asyncio.Event()
        self._closing = False
        self._swept = clock.now()

    def look(self, batch_id: str | None = None) -> None:
        """There is a new batch, or a wish about that one."""
        self._news.set()
        if batch_id is not None and (running := self._running.get(batch_id)) is not None:
            running.look()

    async def run(self) -> None:
        """Until `close`."""
        while not self._closing:
            self._news.clear()
            try:
                await self._take_more()
                self._parts.metrics.counted(await self._parts.store.totals())
                if self._clock.now() - self._swept >= SWEEP_EVERY_S:
                    self._swept = self._clock.now()
                    await self._library.sweep()
            except (StoreUnavailableError, OSError) as error:
                log.warning("batches: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_EVERY_S, self._lease_s)):
                    await self._news.wait()

    async def close(self) -> None:
        """Leaves what runs to other routers, or to the next start. Idempotent."""
        self._closing = True
        self._news.set()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _take_more(self) -> None:
        """The oldest of owners with the fewest here go first."""
        now = self._clock.now()
        ids = await self._parts.store.open_batches()
        self._not_before = {i: t for i, t in self._not_before.items() if t > now and i in ids}
        self._foreign.intersection_update(ids)
        skipped = self._foreign | self._running.keys() | self._not_before.keys()
        others = [i for i in ids if i not in skipped]
        free = self._max_running - len(self._running)
        if not others or free <= 0:
            return
        found = [await self._parts.store.get_batch(i) for i in others[:MAX_LOOKED_AT]]
        model = self._parts.door.settings.model
        self._foreign.update(r.batch_id for r in found if r is not None and r.model != model)
        records = [record for record in found if record is not None and record.model == model]
        owners = Counter(run.owner for run in self._running.values())
        while records and free > 0 and not self._closing:
            record = min(records, key=lambda r: (owners[r.owner], r.batch_id))
            records.remove(record)
            if await self._take(record.batch_id):
                owners[record.owner] += 1
                free -= 1

    async def _take(self, batch_id: str) -> bool:
        store = self._parts.store
        asked = self._clock.now()
        epoch = await store.take(batch_id, ttl_s=self._lease_s)
        if epoch is None:
            return False
        lease = Lease(store, batch_id, epoch, ttl_s=self._lease_s, asked=asked, clock=self._clock)
        # Read under the lease: the former holder may have written since we looked.
        record = await store.get_batch(batch_id)
        if record is None or self._closing:
            await lease.release()
            return False
        run = BatchRun(self._parts, record, lease)
        self._running[batch_id] = run
        task = asyncio.create_task(self._run(batch_id, run, lease), name=batch_id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _run(self, batch_id: str, run: BatchRun, lease: Lease) -> None:
        try:
            await run.run()
            log.info("%s has ended", batch_id)
        except LeaseLostError as error:
            log.warning("%s", error.message)
        except FileNotFoundError:
            log.error("the input of %s does not lie in this router's batch.dir", batch_id)
            self._pause(batch_id)
        except TandemError as error:
            log.warning("%s stands still: %s", batch_id, error.message)
            self._pause(batch_id)
        except Exception:  # the outermost frame: without it nobody would hear of the task's end
            log.exception("%s stands still", batch_id)
            self._pause(batch_id)
        finally:
            del self._running[batch_id]
            await lease.release()
            self._news.set()

    def _pause(self, batch_id: str) -> None:
        self._not_before[batch_id] = self._clock.now() + PAUSE_S
