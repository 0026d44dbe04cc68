"""How many requests may be in the house, how many of their tokens may wait, and whether the door is
open. Pure counting.

Each class leaves some of the house to those above it, so that a higher class still comes in when a
lower one is turned away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.errors import OverloadedError, UnavailableError
from state.tenants import PriorityClass

RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Room:
    """What one class may fill, together with everybody else."""

    max_num_requests: int
    max_waiting_tokens: int


def rooms(
    whole: Room, *, headroom: float, has_interactive: bool = True
) -> Mapping[PriorityClass, Room]:
    """Each class leaves `headroom` of the whole to every class above it; at least one request fits.

    Where nobody can be interactive (`has_interactive` false), the standard class has the whole.
    """
    standard = headroom if has_interactive else 0.0
    left = {
        PriorityClass.INTERACTIVE: 0.0,
        PriorityClass.STANDARD: standard,
        PriorityClass.BATCH: standard + headroom,
    }
    return {
        each: Room(
            max(1, int(whole.max_num_requests * (1 - share))),
            max(1, int(whole.max_waiting_tokens * (1 - share))),
        )
        for each, share in left.items()
    }


class Admission:
    """Counts requests (one for each prompt) between `enter` and `leave`, and tokens that wait."""

    def __init__(self, rooms: Mapping[PriorityClass, Room]) -> None:
        self._rooms = rooms
        self.num_running = 0
        self.num_waiting_tokens = 0
        self.draining = False

    def enter(self, priority_class: PriorityClass = PriorityClass.STANDARD) -> None:
        """Takes a place; every success is followed by exactly one `leave`.

        Raises OverloadedError when the house is full, UnavailableError when it is closing.
        """
        if self.draining:
            raise shutting_down()
        if self.num_running >= self._rooms[priority_class].max_num_requests:
            raise OverloadedError(
                f"{self.num_running} requests are in the house, which is the limit for this one's "
                f"class, {priority_class}",
                reason="saturated",
                retry_after_s=RETRY_AFTER_S,
            )
        self.num_running += 1

    def wait(self, num_tokens: int, priority_class: PriorityClass, *, retry_after_s: float) -> None:
        """Takes room for a prompt until `served`. Raises OverloadedError.

        What nothing waits before has room, however long it is.
        """
        limit = self._rooms[priority_class].max_waiting_tokens
        if self.num_waiting_tokens and self.num_waiting_tokens + num_tokens > limit:
            raise OverloadedError(
                f"{self.num_waiting_tokens} prompt tokens wait in the house; with this prompt's "
                f"{num_tokens} they would exceed {limit}",
                reason="saturated",
                retry_after_s=retry_after_s,
            )
        self.num_waiting_tokens += num_tokens

    def served(self, num_tokens: int) -> None:
        """A prompt waits no longer."""
        assert self.num_waiting_tokens >= num_tokens
        self.num_waiting_tokens -= num_tokens

    def leave(self) -> None:
        assert self.num_running > 0
        self.num_running -= 1


def shutting_down() -> UnavailableError:
    """What clients hear while the door closes."""
    return UnavailableError(
        "the router is shutting down", reason="draining", retry_after_s=RETRY_AFTER_S
    )
