"""What a process is seen to use of its machine."""

from __future__ import annotations

import mmap

import torch

from engine.machine import mark_memory, peak_memory_bytes

CPU = torch.device("cpu")
SIZE = 64 * 2**20
SLACK = 8 * 2**20


def touch(size_bytes: int) -> None:
    """Uses memory of its own, whatever the allocator has kept, and gives it back."""
    with mmap.mmap(-1, size_bytes) as memory:
        for page in range(0, size_bytes, mmap.PAGESIZE):
            memory[page] = 1


def test_a_peak_counts_from_the_mark_on_and_stays_when_the_memory_is_given_back() -> None:
    touch(3 * SIZE)
    before = mark_memory(CPU)
    touch(SIZE)
    used = peak_memory_bytes(CPU) - before
    assert SIZE - SLACK <= used <= SIZE + SLACK
