"""Compiles the grammars of requests before any worker sees them, off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from core.errors import BadRequestError, UnavailableError
from text.structure.compiler import GrammarCompiler

COMPILE_TIMEOUT_S = 5.0
"""For one grammar. The library's own limits end nearly all that would take longer."""
NUM_THREADS = 2
"""So that one which takes long doesn't hold up the others."""


class GrammarCheck:
    """Compiles as workers will, so that a fault is the client's 400. Close it when done."""

    def __init__(self, compiler: GrammarCompiler, timeout_s: float = COMPILE_TIMEOUT_S) -> None:
        self._compiler = compiler
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammars")

    async def text(self, write: Callable[[], str], param: str) -> str:
        """What `write` returns, once it compiles. Both run in a thread.

        Raises BadRequestError that names the field, UnavailableError if others' grammars took all
        the time that there was.
        """
        loop, begun = asyncio.get_running_loop(), threading.Event()
        work = loop.run_in_executor(self._threads, partial(self._compiled, write, begun))
        try:
            return await asyncio.wait_for(work, self._timeout_s)
        except TimeoutError:
            if not begun.is_set():
                raise UnavailableError(
                    "other grammars are being compiled", reason="saturated"
                ) from None
            message = f"{param}: it takes longer than {self._timeout_s:g} s to compile"
            raise BadRequestError(message, param=param) from None
        except BadRequestError as error:
            if error.param is not None:
                raise
            raise BadRequestError(f"{param}: {error.message}", param=param) from None

    async def warm_up(self) -> None:
        """Makes what all grammars share."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._compiler.warm_up)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compiled(self, write: Callable[[], str], begun: threading.Event) -> str:
        begun.set()
        text = write()
        self._compiler.compile(text)
        return text
