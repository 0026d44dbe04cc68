"""What a process is seen to use of its machine."""

from __future__ import annotations

import torch

from engine.machine import mark_memory, peak_memory_bytes

CPU = torch.device("cpu")
SIZE = 64 * 2**20
SLACK = 8 * 2**20


def touch(size_bytes: int) -> None:
    torch.ones(size_bytes, dtype=torch.uint8)


def test_a_peak_counts_from_the_mark_on_and_stays_when_the_memory_is_given_back() -> None:
    touch(3 * SIZE)
    before = mark_memory(CPU)
    touch(SIZE)
    used = peak_memory_bytes(CPU) - before
    assert SIZE - SLACK <= used <= SIZE + SLACK
