"""One batch, from its input to its end, by the holder of its lease.

validating > in_progress > finalizing > completed
           > failed      > (cancel, or the window's end) > cancelled | expired

Every line is answered under the lease and noted in the holder's part; whoever takes the batch over
skips what former holders noted and asks again what was under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from core.errors import AuthenticationError, TandemError
from router.batch.batch_metrics import BatchMetrics
from router.batch.ending import Ending, publish
from router.batch.input_lines import (
    InputCheck,
    InputRules,
    LineReader,
    LineRequest,
    parse_line,
)
from router.batch.lease import Lease
from router.batch.line_answer import (
    LineResult,
    answer_line,
    refused,
    wait_before_retry_s,
)
from router.batch.results import TOKENS, PartWriter, find_results
from router.batch.shelf import Shelf
from router.batch.slots import Slots
from router.door import Door
from router.http.errors import hidden_bug
from router.tenants.gatekeeper import Gatekeeper
from state.batches import BatchRecord, BatchStore

log = logging.getLogger(__name__)

KEEP_EVERY_S = 1.0
"""How old what clients are told of a running batch may be; less where leases are shorter."""


@dataclass(frozen=True, slots=True)
class RunParts:
    """What every run of a router shares."""

    door: Door
    gatekeeper: Gatekeeper
    store: BatchStore
    shelf: Shelf
    slots: Slots
    metrics: BatchMetrics
    wall: Callable[[], float]
    max_in_hand: int
    """Lines of one batch that are asked, or wait for a place, at once."""
    max_line_bytes: int
    max_num_lines: int
    file_ttl_s: int


class BatchRun:
    """Run it once, as one task; cancelled, it leaves what is done for the next holder."""

    def __init__(self, parts: RunParts, record: BatchRecord, lease: Lease) -> None:
        self.owner = record.owner
        self._parts = parts
        self._record = record
        self._lease = lease
        self._rules = InputRules(
            endpoint=record.endpoint,
            model=record.model,
            max_line_bytes=parts.max_line_bytes,
            max_num_lines=parts.max_num_lines,
        )
        self._news = asyncio.Event()
        self._done: set[int] = set()
        self._has_leftovers = False
        self._writer: PartWriter | None = None

    def look(self) -> None:
        """Something may have been asked of the batch."""
        self._news.set()

    async def run(self) -> None:
        """Raises LeaseLostError, StoreUnavailableError, OSError: then others go on with it.

        FileNotFoundError is for the input, which does not lie on this router's shelf.
        """
        # It may be another router's, with a wish or the end of the window behind it.
        if not self._must_end and self._record.status == "validating":
            await self._leased(self._validate(), may_end=True)
            await self._write()
        if self._record.is_final:
            return
        if self._record.num_total:
            await self._answer_and_publish()
        await self._end()

    async def _answer_and_publish(self) -> None:
        try:
            await self._leased(self._recall(), may_end=False)
            part = self._parts.shelf.part(self._record.batch_id, self._lease.epoch)
            self._writer = PartWriter(part)
            if not self._must_end:
                await self._leased(self._answer_all(), may_end=True)
            if self._record.cancelling_at is None:
                self._set(status="finalizing", finalizing_at=self._now)
            await self._leased(self._publish(), may_end=False)
        finally:
            if self._writer is not None:
                self._writer.close()

    async def _end(self) -> None:
        record, now = self._record, self._now
        if record.cancelling_at is not None:
            self._set(status="cancelled", cancelled_at=now)
        elif self._has_leftovers or not record.num_total:
            self._set(status="expired", expired_at=now)
        else:
            self._set(status="completed", completed_at=now)
        await self._write()
        shelf = self._parts.shelf
        await asyncio.to_thread(shelf.remove_parts, record.batch_id)

    async def _write(self) -> None:
        await self._lease.write(self._record)
        if self._record.is_final:
            self._parts.metrics.ended(self._record.status)

    @property
    def _now(self) -> int:
        return int(self._parts.wall())

    @property
    def _must_end(self) -> bool:
        record = self._record
        return record.cancelling_at is not None or self._parts.wall() >= record.expires_at

    def _set(self, **changes: Any) -> None:
        self._record = dataclasses.replace(self._record, **changes)

    async def _leased(self, work: Coroutine[Any, Any, None], *, may_end: bool) -> None:
        """Runs `work` while the lease is kept; `may_end`: no longer than the batch may go on."""
        working = asyncio.create_task(work)
        keeping = asyncio.create_task(self._keep(may_end=may_end))
        tasks = {working, keeping}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # both may have failed
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _keep(self, *, may_end: bool) -> None:
        """Returns when the batch has to end. Raises LeaseLostError."""
        every_s = min(KEEP_EVERY_S, self._lease.ttl_s / 4)
        while not (may_end and self._must_end):
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._news.wait()
            stored = await self._lease.keep(self._record)
            if self._record.cancelling_at is None and stored.cancelling_at is not None:
                self._set(status=stored.status, cancelling_at=stored.cancelling_at)

    async def _validate(self) -> None:
        check = InputCheck(self._rules)
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                for number, data in piece:
                    check.add(number, data)
                if check.has_enough:
                    break
        if faults := check.end():
            errors = tuple(fault.to_json() for fault in faults)
            self._set(status="failed", failed_at=self._now, errors=errors)
        else:
            now = self._now
            self._set(status="in_progress", in_progress_at=now, num_total=check.num_lines)

    async def _recall(self) -> None:
        """What former holders have answered."""
        parts = self._parts.shelf.parts(self._record.batch_id)
        found = await asyncio.to_thread(find_results, parts)
        self._done = set(found)
        self._has_leftovers = not all(place.was_run for place in found.values())
        sums = dict.fromkeys(TOKENS, 0)
        for place in found.values():
            for name, count in zip(TOKENS, place.tokens, strict=True):
                sums[name] += count
        num_failed = sum(place.is_error for place in found.values())
        self._set(usage=sums, num_failed=num_failed, num_completed=len(found) - num_failed)

    async def _answer_all(self) -> None:
        in_hand = asyncio.Semaphore(self._parts.max_in_hand)
        async with aclosing(self._left()) as left, asyncio.TaskGroup() as group:
            async for request in left:
                await in_hand.acquire()
                task = group.create_task(self._answer(request))
                task.add_done_callback(lambda _: in_hand.release())

    async def _answer(self, request: LineRequest) -> None:
        num_tries = 0
        while True:
            num_tries += 1
            try:
                result = await self._try(request)
            except TandemError as error:
                wait_s = wait_before_retry_s(error, num_tries)
                if wait_s is not None:
                    await asyncio.sleep(wait_s)
                    continue
                result = refused(request.custom_id, error)
            except Exception:  # a bug that one line meets must not end the others' work
                log.exception("a line of %s failed by a fault of ours", self._record.batch_id)
                result = refused(request.custom_id, hidden_bug())
            self._note(request.number, result)
            return

    async def _try(self, request: LineRequest) -> LineResult:
        parts = self._parts
        async with parts.slots.place():
            call = await parts.gatekeeper.batch_call(self.owner)
            if call is None:
                raise AuthenticationError("the batch's API key is no longer good")
            return await answer_line(parts.door, self._record.endpoint, request, call)

    def _note(self, number: int, line: LineResult) -> None:
        assert self._writer is not None
        self._writer.write(number, line)
        self._parts.metrics.noted(line)
        self._done.add(number)
        record = self._record
        usage = {n: record.usage.get(n, 0) + line.usage.get(n, 0) for n in TOKENS}
        self._set(
            usage=usage,
            num_failed=record.num_failed + line.is_error,
            num_completed=record.num_completed + (not line.is_error),
        )

    async def _publish(self) -> None:
        """Every line gets its place in one of the two files."""
        ending = Ending(cancelled=self._record.cancelling_at is not None)
        if len(self._done) < self._record.num_total:
            self._has_leftovers = True
            async with aclosing(self._left()) as left:
                async for request in left:
                    self._note(request.number, ending.result(request.custom_id))
        self._record = await publish(
            self._parts.store,
            self._parts.shelf,
            self._record,
            self._lease.epoch,
            now=self._now,
            file_ttl_s=self._parts.file_ttl_s,
        )

    async def _left(self) -> AsyncGenerator[LineRequest, None]:
        """Lines without an answer."""
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                for number, data in piece:
                    if number not in self._done:
                        found = parse_line(number, data, self._rules)
                        assert isinstance(found, LineRequest), "the file has been checked"
                        yield found

    async def _pieces(self) -> AsyncGenerator[list[tuple[int, bytes | None]], None]:
        """Lines of the input, a few at a time: others have requests to be served meanwhile."""
        path = self._parts.shelf.path(self._record.input_file_id)
        reader = LineReader(path, self._rules.max_line_bytes)
        try:
            while piece := await asyncio.to_thread(reader.some):
                yield piece
        finally:
            reader.close()
