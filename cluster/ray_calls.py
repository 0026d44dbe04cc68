"""Calls to actors with a deadline, and Ray's errors in our words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ray.exceptions import RayError

from core.errors import TandemError

T = TypeVar("T")


class ProcessLostError(TandemError):
    """A process of the cluster died, or did not answer in time."""

    code = "process_lost"
    retryable = True


async def call(reply: Awaitable[T], *, timeout_s: float | None) -> T:
    """The reply of `actor.method.remote()`. Raises ProcessLostError; other errors as they are."""
    try:
        async with asyncio.timeout(timeout_s):
            return await reply
    except TimeoutError:
        raise ProcessLostError(f"no answer within {timeout_s:g} s") from None
    except RayError as error:
        raise ProcessLostError(_summary(error)) from error


def _summary(error: RayError) -> str:
    """What happened, and the cause behind it: the first line of Ray's report and the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
