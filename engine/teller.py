"""Tells others what a step yielded while the next step computes.

A thread of its own, because waking the event loop lets it have the interpreter: the step loop would
wait for all that the event loop does then (measured: 0.4 ms between two steps instead of 0.08,
where the event loop works 0.3 ms). This thread's turn comes when kernels let the interpreter go.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from protos.codec import WorkerEvent


class Teller:
    """Calls `publish` with what it is given, in order. `on_failure` hears what escapes from it."""

    def __init__(
        self,
        publish: Callable[[list[WorkerEvent]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._publish = publish
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[list[WorkerEvent] | threading.Event | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="tandem-teller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, events: list[WorkerEvent]) -> None:
        """Returns at once."""
        self._queue.put(events)

    def flush(self) -> None:
        """Returns when everything told before has been published, or will never be."""
        told = threading.Event()
        self._queue.put(told)
        while self._thread.is_alive() and not told.wait(0.1):
            pass

    def stop(self) -> None:
        """Publishes what was told before, then ends the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, threading.Event):
                    item.set()
                else:
                    self._publish(item)
        except Exception as error:
            logging.getLogger(__name__).exception("events could not be told")
            self._on_failure(error)
