"""What pulls are held against: nothing but pipelined gloo sends and receives, of the same messages.

P   ready     > heard go > send up to num_slots messages > wait for the oldest, send the next ...
D   heard it  > go       > post as many receives         > wait for the oldest, post the next ...
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Work

from core.clock import MonotonicClock
from kv_transfer.process_group import connect_store, gloo_group

_DATA_TAG, _READY_TAG, _GO_TAG = 0, 1, 2
_Start = Callable[[list[torch.Tensor], int, int], Work]


@dataclass(frozen=True, slots=True)
class Messages:
    """Bytes in messages of `message_bytes`, the last perhaps shorter; `num_slots` under way."""

    total_bytes: int
    message_bytes: int
    num_slots: int

    @property
    def sizes(self) -> list[int]:
        """Bytes of each message."""
        full, rest = divmod(self.total_bytes, self.message_bytes)
        return [self.message_bytes] * full + [rest] * (rest > 0)


class RawLink:
    """One end of a 2-rank gloo group: rank 0 sends, rank 1 receives."""

    def __init__(self, host: str, port: int, rank: int, *, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        store = connect_store(host, port, "raw", self._timeout)
        self._group = gloo_group(store, rank, 2, host=host, timeout=self._timeout)
        self._peer = 1 - rank
        self._clock = MonotonicClock()
        self._memory = torch.empty(0, dtype=torch.uint8)

    def send(self, messages: Messages) -> None:
        """Sends them all once the other end says go."""
        slots = self._slots_of(messages)
        self._tell(_READY_TAG)
        self._listen(_GO_TAG)
        self._pass(messages, slots, self._group.send)

    def receive(self, messages: Messages) -> float:
        """Seconds from our go until everything is there. Both ends are ready before."""
        slots = self._slots_of(messages)
        self._listen(_READY_TAG)
        started = self._clock.now()
        self._tell(_GO_TAG)
        self._pass(messages, slots, self._group.recv)
        return self._clock.now() - started

    def _pass(self, messages: Messages, slots: list[torch.Tensor], start: _Start) -> None:
        under_way: deque[Work] = deque()
        for number, size in enumerate(messages.sizes):
            if len(under_way) == messages.num_slots:
                under_way.popleft().wait(self._timeout)
            slot = slots[number % messages.num_slots][:size]
            under_way.append(start([slot], self._peer, _DATA_TAG))
        for work in under_way:
            work.wait(self._timeout)

    def _tell(self, tag: int) -> None:
        self._group.send([torch.zeros(1, dtype=torch.uint8)], self._peer, tag).wait(self._timeout)

    def _listen(self, tag: int) -> None:
        self._group.recv([torch.empty(1, dtype=torch.uint8)], self._peer, tag).wait(self._timeout)

    def _slots_of(self, messages: Messages) -> list[torch.Tensor]:
        """Buffers present in memory, as a link's staging is after its first use."""
        size = messages.num_slots * messages.message_bytes
        if len(self._memory) < size:
            self._memory = torch.zeros(size, dtype=torch.uint8)
        return list(self._memory[:size].view(messages.num_slots, messages.message_bytes))
