"""Answers of /v1/chat/completions, streamed and whole, from the same deltas."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from router.generation import Generation
from router.http.format import DONE, ChoiceFrames, extension_of, frame, usage_of
from router.http.logprobs import chat_logprobs
from router.http.message_format import WholeMessage, delta_of
from router.http.schema import ChatBody
from router.life.choice import Delta
from router.message.reader import MessageDelta, MessageReader
from text.tokenizer import Tokenizer


class ChatAnswer:
    """One chat request's answer. Use either `frames` or `whole`, once."""

    def __init__(
        self, body: ChatBody, generation: Generation, tokenizer: Tokenizer, created: int
    ) -> None:
        self._body = body
        self._generation = generation
        self._tokenizer = tokenizer
        self._head: dict[str, object] = {
            "id": f"chatcmpl-{generation.request_id}",
            "object": "chat.completion.chunk" if body.streams else "chat.completion",
            "created": created,
            "model": body.model,
        }
        self._choice_frames = ChoiceFrames(self._head, include_usage=body.include_usage)
        self._readers: dict[int, MessageReader | None] = {}

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Events; a choice's first one carries its role and leaves with its first token."""
        begun: set[int] = set()
        async with aclosing(self._generation.deltas()) as deltas:
            async for delta in deltas:
                role = b"" if delta.choice in begun else self._role_frame(delta.choice)
                begun.add(delta.choice)
                if event := role + self._delta_frame(delta):
                    yield event
        if self._body.include_usage or self._body.include_timings:
            yield self._final_frame()
        yield DONE

    async def whole(self) -> dict[str, object]:
        """The answer when every choice has ended."""
        choices: dict[int, _WholeChoice] = {}
        async with aclosing(self._generation.deltas()) as deltas:
            async for delta in deltas:
                choice = choices.setdefault(delta.choice, _WholeChoice())
                message = self._read(delta)
                choice.add(message, chat_logprobs(self._tokenizer, delta))
        answer = self._head | {
            "choices": [choices[index].to_json(index) for index in sorted(choices)],
            "usage": usage_of([self._generation]),
        }
        if self._body.include_timings:
            answer["tandem"] = extension_of([self._generation])
        return answer

    def _role_frame(self, index: int) -> bytes:
        return self._choice_frame(index, {"role": "assistant", "content": ""}, None, None)

    def _delta_frame(self, delta: Delta) -> bytes:
        """Empty where the client would learn nothing: text that is held back."""
        message = self._read(delta)
        if message.is_empty and not delta.logprobs:
            return b""
        logprobs = chat_logprobs(self._tokenizer, delta)
        return self._choice_frame(delta.choice, delta_of(message), logprobs, message.finish_reason)

    def _read(self, delta: Delta) -> MessageDelta:
        """The delta as a message's: thoughts and calls told apart, where there may be any."""
        if delta.choice not in self._readers:
            self._readers[delta.choice] = self._generation.reader()
        reader = self._readers[delta.choice]
        if reader is None:
            return MessageDelta(delta.text, finish_reason=delta.finish_reason)
        return reader.read(delta)

    def _choice_frame(
        self,
        index: int,
        delta: dict[str, object],
        logprobs: dict[str, object] | None,
        finish_reason: str | None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        return self._choice_frames.frame(choice)

    def _final_frame(self) -> bytes:
        event = self._head | {"choices": [], "usage": usage_of([self._generation])}
        if self._body.include_timings:
            event["tandem"] = extension_of([self._generation])
        return frame(event)


@dataclass(slots=True)
class _WholeChoice:
    """One choice while its answer is collected."""

    message: WholeMessage = field(default_factory=WholeMessage)
    logprobs: list[object] = field(default_factory=list)
    has_logprobs: bool = False
    finish_reason: str | None = None

    def add(self, delta: MessageDelta, logprobs: dict[str, object] | None) -> None:
        self.message.add(delta)
        self.finish_reason = delta.finish_reason
        content = logprobs["content"] if logprobs else None
        if isinstance(content, list):
            self.has_logprobs = True
            self.logprobs += content

    def to_json(self, index: int) -> dict[str, object]:
        logprobs = {"content": self.logprobs, "refusal": None} if self.has_logprobs else None
        return {
            "index": index,
            "message": self.message.to_json(),
            "logprobs": logprobs,
            "finish_reason": self.finish_reason,
        }
