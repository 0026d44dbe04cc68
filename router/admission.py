"""How many requests may be in the house, and whether the door is open. Pure counting."""

from __future__ import annotations

from core.errors import OverloadedError, UnavailableError

RETRY_AFTER_S = 1.0


class Admission:
    """Counts requests (one for each prompt) between `enter` and `leave`."""

    def __init__(self, max_num_requests: int) -> None:
        self._max_num_requests = max_num_requests
        self.num_running = 0
        self.draining = False

    def enter(self) -> None:
        """Takes a place; every success is followed by exactly one `leave`.

        Raises OverloadedError when the house is full, UnavailableError when it is closing.
        """
        if self.draining:
            raise shutting_down()
        if self.num_running >= self._max_num_requests:
            raise OverloadedError(
                f"{self.num_running} requests are in the house, which is the limit",
                reason="saturated",
                retry_after_s=RETRY_AFTER_S,
            )
        self.num_running += 1

    def leave(self) -> None:
        assert self.num_running > 0
        self.num_running -= 1


def shutting_down() -> UnavailableError:
    """What clients hear while the door closes."""
    return UnavailableError(
        "the router is shutting down", reason="draining", retry_after_s=RETRY_AFTER_S
    )
