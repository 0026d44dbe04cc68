"""Where attempts with a grammar wait until it is compiled, on their way to the step loop.

    submit             no grammar, or one that is known: passed on at once
                       else held while a thread compiles it and replays what was emitted
    after              whatever else is said of a held attempt keeps its place behind it
    compiled           passed on, and what was held behind it
    a fault            the attempt fails; what was held behind it is passed on

A grammar that takes long so delays its own attempts, and others that wait for a grammar, only.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from core.errors import BadRequestError
from core.request import AttemptFailed
from engine.intake import failed
from engine.role import Submit
from text.structure.compiler import GrammarCompiler

_REPLAYED_AT_ONCE = 64
"""Emitted tokens that are replayed by the caller's thread: some 0.1 ms."""


class GrammarGate:
    """Between a worker's sessions and its step loop. Thread-safe."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        post: Callable[[Submit], None],
        refuse: Callable[[AttemptFailed], None],
    ) -> None:
        """`post` and `refuse` are called from any thread."""
        self._compiler = compiler
        self._post = post
        self._refuse = refuse
        self._held: dict[str, list[Callable[[], object]]] = {}
        self._when_free: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    def submit(self, submit: Submit) -> None:
        """Passes the attempt on with the state of its grammar, or refuses it."""
        attempt = submit.attempt
        if not attempt.grammar:
            self._post(submit)
            return
        grammar = self._compiler.known(attempt.grammar)
        if grammar is not None and attempt.num_emitted <= _REPLAYED_AT_ONCE:
            emitted = attempt.token_ids[attempt.num_prompt_tokens :]
            self._post(dataclasses.replace(submit, grammar=grammar.start(emitted)))
            return
        with self._lock:
            self._held[attempt.transfer_id] = []
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
            self._thread.submit(self._compile, submit)

    def after(self, transfer_id: str, action: Callable[[], object]) -> None:
        """Runs `action` now, or behind the attempt if that is held."""
        with self._lock:
            held = self._held.get(transfer_id)
            if held is not None:
                held.append(action)
                return
        action()

    def when_free(self, action: Callable[[], object]) -> None:
        """Runs `action` once nothing that came before is held."""
        with self._lock:
            if self._held:
                self._when_free.append(action)
                return
        action()

    def _compile(self, submit: Submit) -> None:
        attempt = submit.attempt
        try:
            grammar = self._compiler.compile(attempt.grammar)
            state = grammar.start(attempt.token_ids[attempt.num_prompt_tokens :])
        except BadRequestError as error:
            message = f"the grammar can't be compiled: {error.message}"
            self._refuse(failed(attempt.transfer_id, error.code, message))
        else:
            self._post(dataclasses.replace(submit, grammar=state))
        # What comes meanwhile is held as well, until nothing is left to run before it
        while (actions := self._take(attempt.transfer_id)) is not None:
            for action in actions:
                action()
        with self._lock:
            waiting: list[Callable[[], object]] = []
            if not self._held:
                waiting, self._when_free = self._when_free, []
        for action in waiting:
            action()

    def _take(self, transfer_id: str) -> list[Callable[[], object]] | None:
        with self._lock:
            actions = self._held[transfer_id]
            if not actions:
                del self._held[transfer_id]
                return None
            self._held[transfer_id] = []
            return actions
