"""Compiles the grammars of requests before any worker sees them, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from core.errors import BadRequestError
from text.structure.compiler import GrammarCompiler

COMPILE_TIMEOUT_S = 3.0
"""For one grammar. The library's own limits end nearly all that would take longer."""


class GrammarCheck:
    """Compiles as workers will, so that a fault is the client's 400. Close it when done."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    async def text(self, write: Callable[[], str], param: str) -> str:
        """What `write` returns, once it compiles. Both run in a thread.

        Raises BadRequestError that names the field.
        """
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._thread, self._compiled, write)
        try:
            return await asyncio.wait_for(work, COMPILE_TIMEOUT_S)
        except TimeoutError:
            message = f"{param}: it takes longer than {COMPILE_TIMEOUT_S:g} s to compile"
            raise BadRequestError(message, param=param) from None
        except BadRequestError as error:
            if error.param is not None:
                raise
            raise BadRequestError(f"{param}: {error.message}", param=param) from None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compiled(self, write: Callable[[], str]) -> str:
        text = write()
        self._compiler.compile(text)
        return text
