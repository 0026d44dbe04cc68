"""Reads a choice's text as a message: thoughts, content, calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.request import FinishReason
from router.life.choice import Delta
from router.message.thoughts import ThoughtSplitter
from router.tools.call_event import CallArguments, CallParser, CallStart, Piece

TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What a call gained. Its first one has `id` and `name`; `arguments` are a piece of JSON."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class MessageDelta:
    """What a message gained. `finish_reason` is on the last one."""

    content: str = ""
    thoughts: str = ""
    calls: tuple[CallDelta, ...] = ()
    finish_reason: str | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.content or self.thoughts or self.calls or self.finish_reason)

    @property
    def is_text(self) -> bool:
        """Whether it is some content and nothing else."""
        return bool(self.content) and not (self.thoughts or self.calls or self.finish_reason)


class MessageReader:
    """Of one choice. Without a splitter or a parser that part of the work is left out."""

    def __init__(
        self,
        splitter: ThoughtSplitter | None,
        parser: CallParser | None,
        new_id: Callable[[], str],
        *,
        parallel: bool = True,
    ) -> None:
        """Not `parallel`: calls after the first are left out."""
        self._splitter = splitter
        self._parser = parser
        self._new_id = new_id
        self._parallel = parallel
        self._num_calls = 0

    def read(self, delta: Delta) -> MessageDelta:
        """What the message gains by this delta; the one with a finish reason is the last."""
        text, thoughts = delta.text, ""
        if self._splitter is not None:
            thoughts, text = self._splitter.push(text)
            if delta.finish_reason is not None:
                last_thoughts, last = self._splitter.finish()
                thoughts, text = thoughts + last_thoughts, text + last
        pieces: list[Piece] = [text]
        if self._parser is not None:
            pieces = self._parser.push(text)
            if delta.finish_reason is not None:
                cut = delta.finish_reason is FinishReason.LENGTH
                pieces += self._parser.finish(cut=cut)
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        calls = self._calls(pieces)
        return MessageDelta(content, thoughts, calls, self._reason(delta.finish_reason))

    def _calls(self, pieces: list[Piece]) -> tuple[CallDelta, ...]:
        calls: list[CallDelta] = []
        for piece in pieces:
            if isinstance(piece, CallStart):
                self._num_calls += 1
                if self._is_wanted:
                    calls.append(CallDelta(self._num_calls - 1, self._new_id(), piece.name))
            elif isinstance(piece, CallArguments) and self._is_wanted:
                calls.append(CallDelta(self._num_calls - 1, arguments=piece.text))
        return tuple(calls)

    @property
    def _is_wanted(self) -> bool:
        return self._parallel or self._num_calls == 1

    def _reason(self, reason: FinishReason | None) -> str | None:
        if reason is FinishReason.STOP and self._num_calls:
            return TOOL_CALLS
        return reason
