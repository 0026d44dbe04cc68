"""One choice's answer on its way through the outside service, so many characters at a time."""

from __future__ import annotations

from dataclasses import replace

from core.request import FinishReason
from router.guard.policy import Action, Stage
from router.guard.service import GuardService, Opinion, Question
from router.guard.verdict import redacted
from router.life.choice import Delta

CONTEXT_CHARACTERS = 500
"""Of what has gone on already: the service sees a window in its place."""


class ServiceWindow:
    """Withholds text until the service has seen it."""

    def __init__(self, service: GuardService, *, size: int, tenant: str, request_id: str) -> None:
        """`size` in characters."""
        self.blocked = False
        self._service = service
        self._size = size
        self._tenant = tenant
        self._request_id = request_id
        self._waiting: list[Delta] = []
        self._before = ""

    async def push(self, delta: Delta) -> list[Delta]:
        """What goes on now. Raises UnavailableError where the service must answer and doesn't."""
        self._waiting.append(delta)
        text = "".join(waiting.text for waiting in self._waiting)
        if delta.finish_reason is None and len(text) < self._size:
            return []
        waiting, self._waiting = self._waiting, []
        if not text:
            return waiting
        question = Question(Stage.OUTPUT, self._tenant, self._request_id, text, self._before)
        self._before = (self._before + text)[-CONTEXT_CHARACTERS:]
        return self._judged(waiting, text, await self._service.ask(question))

    def _judged(self, waiting: list[Delta], text: str, opinion: Opinion) -> list[Delta]:
        bare = replace(waiting[-1], text="", token_ids=(), logprobs=(), spans=())
        if opinion.action is Action.BLOCK:
            self.blocked = True
            return [replace(bare, finish_reason=FinishReason.CONTENT_FILTER)]
        if opinion.action is Action.REDACT:
            return [replace(bare, text=redacted(text, opinion.redactions), unspelled=True)]
        return waiting
