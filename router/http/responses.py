"""Answers of /v1/responses, streamed and whole, from the same items.

response.created > response.in_progress > events of the items, in order
> response.completed | response.incomplete | response.failed
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from core.errors import BadRequestError, TandemError
from router.faults import fault_of
from router.generation import Generation
from router.http.chat_deltas import ChatDelta, chat_deltas
from router.http.format import extension_of, input_details
from router.http.responses_input import Conversation
from router.http.responses_items import INCOMPLETE_REASONS, Event, OutputItems
from router.http.responses_schema import ResponsesBody, own_param
from text.tokenizer import Tokenizer

_to_json = json.JSONEncoder(separators=(",", ":")).encode


class ResponsesAnswer:
    """One response. Use either `frames` or `whole`, once."""

    def __init__(
        self,
        body: ResponsesBody,
        conversation: Conversation,
        generation: Generation,
        tokenizer: Tokenizer,
        created: int,
    ) -> None:
        self._body = body
        self._conversation = conversation
        self._generation = generation
        self._tokenizer = tokenizer
        self._created = created
        self._items = OutputItems(generation.request_id)
        self._num_events = 0

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Events; the first ones leave with the first token."""
        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                events = self._opening() + list(self._items.take(delta))
                if delta.finish_reason is not None:
                    events += self._items.end(delta.finish_reason)
                    events.append(self._closing(delta.finish_reason))
                if events:
                    yield self._framed(events)

    async def whole(self) -> dict[str, object]:
        """The answer when it has ended."""
        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                for _ in self._items.take(delta):
                    pass
                if delta.finish_reason is not None:
                    for _ in self._items.end(delta.finish_reason):
                        pass
                    closing = self._closing(delta.finish_reason)
        whole: dict[str, object] = closing["response"]
        return whole

    def failed(self, error: TandemError) -> bytes:
        """The last event of a stream that failed midway."""
        fault = fault_of(error)
        status = "cancelled" if fault.code == "cancelled" else "failed"
        response = self._response(status, self._items.broken_off()) | {
            "error": {"code": fault.code, "message": fault.message}
        }
        return self._framed([{"type": "response.failed", "response": response}])

    async def _deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """Faults name the fields of this API, not the chat's."""
        try:
            async with aclosing(chat_deltas(self._generation, self._tokenizer)) as deltas:
                async for delta in deltas:
                    yield delta
        except BadRequestError as error:
            error.param = own_param(error.param, self._conversation)
            raise

    def _opening(self) -> list[Event]:
        if self._num_events:
            return []
        response = self._response("in_progress", [])
        return [
            {"type": "response.created", "response": response},
            {"type": "response.in_progress", "response": response},
        ]

    def _closing(self, finish_reason: str) -> Event:
        reason = INCOMPLETE_REASONS.get(finish_reason)
        status = "completed" if reason is None else "incomplete"
        response = self._response(status, self._items.items) | {
            "usage": self._usage(),
            "completed_at": int(time.time()) if reason is None else None,
            "incomplete_details": None if reason is None else {"reason": reason},
        }
        if self._body.include_timings:
            response["tandem"] = extension_of([self._generation])
        return {"type": f"response.{status}", "response": response}

    def _framed(self, events: Iterable[Event]) -> bytes:
        """Numbered, in the order in which they are sent."""
        frames = []
        for event in events:
            numbered = event | {"sequence_number": self._num_events}
            self._num_events += 1
            frames.append(f"event: {event['type']}\ndata: {_to_json(numbered)}\n\n")
        return "".join(frames).encode()

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        body, spec = self._body, self._generation.spec
        return {
            "id": f"resp_{self._generation.request_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": body.model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "metadata": body.metadata or {},
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "temperature": spec.temperature,
            "top_p": spec.top_p,
            "top_logprobs": body.top_logprobs or 0,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "tool_choice": _as_sent(body.tool_choice) or "auto",
            "tools": [_as_sent(tool) for tool in body.tools or ()],
            "text": _as_sent(body.text) or {"format": {"type": "text"}},
            "reasoning": _as_sent(body.reasoning),
            "truncation": "disabled",
            "service_tier": "default",
            "background": False,
            "store": False,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "safety_identifier": body.safety_identifier,
            "user": body.user,
            "usage": None,
        }

    def _usage(self) -> dict[str, object]:
        usage = self._generation.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": input_details([usage]) | {"cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._items.num_reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _as_sent(value: Any) -> Any:
    """A field of the body as the client wrote it."""
    if value is None or isinstance(value, str):
        return value
    return value.model_dump(by_alias=True, exclude_unset=True)
