"""One request from the door's view: prepared, lived, told, accounted.

    router/preparation.py   what is asked > what is served        router/lives.py   who serves it
    router/message_readers.py   what is told > messages

Nothing happens before the first `anext` of `Generation.deltas`, so everything that can be refused
is refused before a first byte is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from core.errors import CancelledRequestError, TandemError
from core.request import TokenLogprobs
from router.door import Door
from router.identifiers import new_request_id
from router.life.choice import Delta
from router.life.served_life import ServedLife, num_pinned_tokens
from router.life.timeline import RequestTimeline, RequestTimings
from router.lives import new_life, told
from router.message.reader import MessageReader
from router.message_readers import reader_of
from router.observe.origin import current_origin
from router.observe.token_meter import TokenMeter
from router.preparation import Prepared, prepare
from router.request_spec import ChatPrompt, RequestSpec
from router.tenants.call import current_call
from router.visit import Served, Visit


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request, as they are billed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    pinned_tokens: int | None = None
    """Of the prompt, kept cached as the client asked; None: it did not."""


@dataclass(frozen=True, slots=True)
class ServedBy:
    """Who served a request: the worker of its first token, and the last that decoded it."""

    prefill_worker: str
    decode_worker: str
    num_attempts: int


class Generation:
    """One request from the door's view. Its results are complete once `deltas` has ended."""

    def __init__(
        self,
        door: Door,
        spec: RequestSpec,
        received: float,
        *,
        client_id: str = "",
        part_of: Generation | None = None,
    ) -> None:
        """`client_id` is the client's own name for it, and `part_of` the first of several prompts
        of one request: by both it can be cancelled."""
        self.request_id = new_request_id()
        self.spec = spec
        self._door = door
        self._call = current_call()
        self._timeline = RequestTimeline(received)
        self._record = door.observer.begin(
            self.request_id, spec, current_origin(), self._timeline, self._call
        )
        self._meter: TokenMeter
        self._prepared: Prepared | None = None
        self._visit: Visit | None = None
        self._life: ServedLife | None = None
        own_id = self.request_id if part_of is None else part_of.request_id
        self._names = (self._call.tenant, own_id, client_id)
        self._cancelled: CancelledRequestError | None = None
        self._last_token: dict[int, float] = {}

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        return () if self._prepared is None else self._prepared.request.token_ids

    @property
    def seed(self) -> int:
        return 0 if self._prepared is None else self._prepared.request.sampling.seed

    @property
    def usage(self) -> Usage:
        if self._life is None:
            return Usage(0, 0, 0)
        return Usage(
            prompt_tokens=len(self.prompt_token_ids),
            completion_tokens=self._life.num_output_tokens if self.spec.max_tokens != 0 else 0,
            cached_tokens=self._life.num_cached_tokens or 0,
            pinned_tokens=num_pinned_tokens(self._life),
        )

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """One for each token of the prompt, but none for the first, which nothing predicts. Known
        with the first delta; None if nobody asked."""
        if self.spec.prompt_logprobs is None or self._life is None:
            return None
        known = self._life.prompt_logprobs
        return [None, *(known[i] for i in range(1, len(self.prompt_token_ids)))]

    @property
    def echo_text(self) -> str:
        """What comes before each choice's own text; empty unless the client asked. Not before the
        first delta."""
        if not self.spec.echo:
            return ""
        assert self._prepared is not None, "asked before the first delta"
        prompt = self._prepared.prompt
        if isinstance(prompt, ChatPrompt):
            last = prompt.messages[-1]
            return str(last.get("content")) if last.get("role") == "assistant" else ""
        if isinstance(prompt, str) and not self._prepared.is_truncated:
            return prompt
        skip = self.spec.skip_special_tokens
        return self._door.texts.tokenizer.decode(self.prompt_token_ids, skip)

    @property
    def timings(self) -> RequestTimings:
        return self._timeline.timings()

    @property
    def served_by(self) -> ServedBy:
        assert self._life is not None, "asked before the first delta"
        life = self._life
        return ServedBy(life.prefill_worker, life.decode_worker, life.num_attempts)

    def reader(self) -> MessageReader | None:
        """Reads a choice of a chat as a message; None where its text is all there is to it.

        Not before the first delta.
        """
        return reader_of(self.spec, self._door.texts, self.prompt_token_ids)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """What each choice gains, until all have ended. Raises TandemError; close it always."""
        try:
            self._visit = visit = self._door.enter(self.spec.model, self._call)
        except TandemError as error:
            self._door.observer.refused(self._record, error)
            raise
        self._door.running.add(self, *self._names)
        self._door.observer.entered(self._record)
        outcome = "internal_error"
        try:
            async with aclosing(self._serve(visit)) as deltas:
                async for delta in deltas:
                    yield delta
            outcome = "finished"
        except TandemError as error:
            outcome = error.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "cancelled"
            raise
        finally:
            self._door.running.remove(self, *self._names)
            usage = self.usage
            pinned = None if self._life is None else self._life.pinned
            served = Served(
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
                0.0 if pinned is None else pinned.token_seconds,
            )
            self._door.observer.left(self._record, outcome, self._life)
            self._door.leave(outcome, self._life, visit, served)

    def cancel(self) -> None:
        """`deltas` raises CancelledRequestError soon."""
        self._cancelled = CancelledRequestError("the request was cancelled")
        if self._life is not None:
            self._life.end(self._cancelled)
        if self._visit is not None:
            self._visit.end(self._cancelled)

    async def _serve(self, visit: Visit) -> AsyncGenerator[Delta, None]:
        door, spec = self._door, self.spec
        self._prepared = prepared = await prepare(door, spec, self._record, visit)
        if self._cancelled is not None:
            raise self._cancelled
        self._life = life = new_life(door, spec, prepared.request, self._timeline, prepared.guarded)
        door.begin(life)
        await visit.turn(life)
        self._meter = door.metrics.meter(self._record.priority_class)
        passed = told(life, spec)
        if prepared.guarded is not None:
            passed = prepared.guarded.passed(passed, life.end_choice)
        async with aclosing(passed) as deltas:
            async for delta in deltas:
                self._note(delta)
                visit.gained(len(delta.token_ids))
                yield delta

    def _note(self, delta: Delta) -> None:
        now = self._door.clock.now()
        last = self._last_token.get(delta.choice)
        self._last_token[delta.choice] = now
        since_last_s = None if last is None else now - last
        self._meter.tokens(len(delta.token_ids), since_last_s)
