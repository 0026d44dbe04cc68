"""Whether a request would come too late, before any work is spent on it (pure)."""

from __future__ import annotations

from core.errors import DeadlineError, OverloadedError, TandemError

MAX_RETRY_AFTER_S = 60.0


def too_late(
    *, predicted_s: float | None, alone_s: float | None, left_s: float
) -> TandemError | None:
    """The error to refuse it with, if its first token is predicted after its deadline.

    `alone_s` is what it would take with nothing before it: where even that is too long, coming back
    does not help, and it is a deadline's error, not an overload's.
    """
    if predicted_s is None or predicted_s <= left_s:
        return None
    if alone_s is not None and alone_s > left_s:
        return DeadlineError(
            f"a prompt of this length takes {alone_s:.1f} s to its first token, and {left_s:.1f} s "
            "are left to the deadline"
        )
    return OverloadedError(
        f"the first token is expected in {predicted_s:.1f} s, and {left_s:.1f} s are left to the "
        "deadline",
        reason="deadline",
        retry_after_s=retry_after_s(predicted_s - left_s),
    )


def retry_after_s(excess_s: float | None) -> float:
    """When there may be room: after what is too much has been worked off."""
    return 1.0 if excess_s is None else min(MAX_RETRY_AFTER_S, max(1.0, excess_s))
