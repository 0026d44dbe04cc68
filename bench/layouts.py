"""Ways to lay Tandem out on one machine with the same number of compute threads."""

from __future__ import annotations


def combined(num_threads: int) -> dict[str, str]:
    """Settings of one worker that does both phases with every thread."""
    return {
        "cluster.num_prefill_workers": "0",
        "cluster.num_decode_workers": "1",
        "router.mode": "combined",
        "parallel.num_threads": str(num_threads),
    }


def pair(num_threads: int) -> dict[str, str]:
    """Settings of 1P+1D, each with half of the threads and at least one."""
    return {
        "cluster.num_prefill_workers": "1",
        "cluster.num_decode_workers": "1",
        "router.mode": "disaggregated",
        "parallel.num_threads": str(max(1, num_threads // 2)),
    }
