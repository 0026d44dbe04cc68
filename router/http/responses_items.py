"""The output items of one response while they grow, and the events that tell of it.

    message         output_item.added > content_part.added > output_text.delta ... .done
                    > content_part.done > output_item.done
    reasoning       the same with reasoning_text
    function_call   output_item.added > function_call_arguments.delta ... .done > output_item.done

One item is open at a time: what follows closes it. Pure: events are dicts without their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from router.http.chat_deltas import ChatDelta
from router.message.reader import CallDelta

Event = dict[str, Any]
INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""A choice's finish reason > why a response is incomplete; any other one completes it."""


@dataclass(slots=True)
class _Text:
    """A message's or a reasoning's text."""

    id: str
    is_reasoning: bool
    text: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return "reasoning_text" if self.is_reasoning else "output_text"

    def part(self) -> dict[str, Any]:
        text = "".join(self.text)
        if self.is_reasoning:
            return {"type": "reasoning_text", "text": text}
        return {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": list(self.logprobs),
        }

    def item(self, status: str, *, empty: bool = False) -> dict[str, Any]:
        content = [] if empty else [self.part()]
        if self.is_reasoning:
            return {
                "type": "reasoning",
                "id": self.id,
                "summary": [],
                "content": content,
                "status": status,
            }
        return {
            "type": "message",
            "id": self.id,
            "role": "assistant",
            "content": content,
            "status": status,
        }


@dataclass(slots=True)
class _Call:
    """A call of a function."""

    id: str
    index: int
    call_id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def item(self, status: str, *, empty: bool = False) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": self.id,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "" if empty else "".join(self.arguments),
            "status": status,
        }


class OutputItems:
    """Grows by deltas. `items` are complete after `end`."""

    def __init__(self, request_id: str) -> None:
        self.items: list[dict[str, Any]] = []
        self.num_reasoning_tokens = 0
        self._request_id = request_id
        self._open: _Text | _Call | None = None

    def take(self, delta: ChatDelta) -> Iterator[Event]:
        """What the client is told of this gain."""
        if delta.reasoning:
            self.num_reasoning_tokens += delta.num_tokens
            yield from self._take_text(delta.reasoning, (), is_reasoning=True)
        if delta.text or (delta.logprobs and not delta.reasoning and not delta.calls):
            yield from self._take_text(delta.text, delta.logprobs, is_reasoning=False)
        for call in delta.calls:
            yield from self._take_call(call)

    def end(self, finish_reason: str | None) -> Iterator[Event]:
        """Nothing follows. An answer without any text is an empty message."""
        if not self.items and self._open is None:
            yield from self._begin_text(is_reasoning=False)
        status = "incomplete" if finish_reason in INCOMPLETE_REASONS else "completed"
        yield from self._close(status)

    def broken_off(self) -> list[dict[str, Any]]:
        """The items of an answer that failed here."""
        unfinished = [] if self._open is None else [self._open.item("incomplete")]
        return self.items + unfinished

    def _take_text(
        self, text: str, logprobs: tuple[dict[str, Any], ...], *, is_reasoning: bool
    ) -> Iterator[Event]:
        opened = self._open
        if not isinstance(opened, _Text) or opened.is_reasoning is not is_reasoning:
            yield from self._close("completed")
            yield from self._begin_text(is_reasoning=is_reasoning)
        opened = self._open
        assert isinstance(opened, _Text)
        opened.text.append(text)
        opened.logprobs += logprobs
        event: Event = self._event(f"{opened.kind}.delta") | {"content_index": 0, "delta": text}
        yield event if is_reasoning else event | {"logprobs": list(logprobs)}

    def _begin_text(self, *, is_reasoning: bool) -> Iterator[Event]:
        opened = _Text(self._new_id("rs" if is_reasoning else "msg"), is_reasoning)
        self._open = opened
        yield self._added(opened.item("in_progress", empty=True))
        yield self._event("content_part.added") | {"content_index": 0, "part": opened.part()}

    def _take_call(self, call: CallDelta) -> Iterator[Event]:
        if not isinstance(self._open, _Call) or self._open.index != call.index:
            yield from self._close("completed")
            self._open = _Call(self._new_id("fc"), call.index, call.id, call.name)
            yield self._added(self._open.item("in_progress", empty=True))
        if call.arguments:
            self._open.arguments.append(call.arguments)
            yield self._event("function_call_arguments.delta") | {"delta": call.arguments}

    def _close(self, status: str) -> Iterator[Event]:
        opened = self._open
        if opened is None:
            return
        if isinstance(opened, _Call):
            arguments = "".join(opened.arguments)
            done: Event = {"name": opened.name, "arguments": arguments}
            yield self._event("function_call_arguments.done") | done
        else:
            part = opened.part()
            done = {"content_index": 0, "text": part["text"]}
            if not opened.is_reasoning:
                done["logprobs"] = part["logprobs"]
            yield self._event(f"{opened.kind}.done") | done
            yield self._event("content_part.done") | {"content_index": 0, "part": part}
        item = opened.item(status)
        yield {"type": "response.output_item.done", "output_index": len(self.items), "item": item}
        self.items.append(item)
        self._open = None

    def _added(self, item: dict[str, Any]) -> Event:
        return {"type": "response.output_item.added", "output_index": len(self.items), "item": item}

    def _event(self, name: str) -> Event:
        """Of the open item, which will be the next in the list."""
        assert self._open is not None
        return {
            "type": f"response.{name}",
            "item_id": self._open.id,
            "output_index": len(self.items),
        }

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}_{self._request_id}_{len(self.items)}"
