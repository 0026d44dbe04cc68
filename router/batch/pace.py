"""How many requests of batches may be in the house: what online traffic leaves (pure)."""

from __future__ import annotations

from dataclasses import dataclass

SEATS_KEPT = 0.25
"""Share of the workers' places that batches leave to whoever comes next."""
KV_KEPT = 0.2
"""Share of the KV blocks, likewise."""


@dataclass(frozen=True, slots=True)
class HouseView:
    """The house as this router sees it. Sequences are those of workers that decode."""

    num_seats: int
    """Sequences that may run at once."""
    num_sequences: int
    """Of everybody, batches included."""
    num_waiting_at_workers: int
    num_online_waiting: int
    """Requests in this router's line that are no batch's."""
    num_batch: int
    """Requests of batches that this router has inside."""
    free_kv: float
    """Share of blocks that nobody holds or was promised."""


def num_allowed(view: HouseView, max_concurrency: int) -> int:
    """How many may be inside in all; fewer than there are: nobody new until some have left.

    None while online requests wait, or while there is nobody to serve; one where the house is
    empty, however small it is.
    """
    if view.num_online_waiting or not view.num_seats:
        return 0
    others = max(0, view.num_sequences - view.num_batch)
    if not others and not view.num_batch:
        return 1
    if view.num_waiting_at_workers or view.free_kv < KV_KEPT:
        return 0
    left = int(view.num_seats * (1 - SEATS_KEPT)) - others
    return max(0, min(max_concurrency, left))
