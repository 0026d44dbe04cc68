"""Answers of /v1/chat/completions, streamed and whole, from the same deltas."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from router.generation import Generation
from router.http.format import (
    DONE,
    TEXT,
    ChoiceFrames,
    RunningUsage,
    TextFrames,
    extension_of,
    frame,
    usage_of,
)
from router.http.logprobs import TokenNames, chat_logprobs, prompt_logprobs_json
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
        self._names = TokenNames(tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._usage = RunningUsage([generation]) if body.continuous_usage else None
        self._with_ids = bool(body.return_token_ids)
        self._head: dict[str, object] = {
            "id": f"chatcmpl-{generation.request_id}",
            "object": "chat.completion.chunk" if body.streams else "chat.completion",
            "created": created,
            "model": body.model,
        }
        self._choice_frames = ChoiceFrames(self._head, include_usage=body.include_usage)
        self._text_frames = TextFrames(self._choice_frames, _text_choice)
        self._tells_only_text = not (body.continuous_usage or self._with_ids)
        self._readers: dict[int, MessageReader | None] = {}

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Events; a choice's first one carries its role and leaves with its first token."""
        begun: set[int] = set()
        async with aclosing(self._generation.deltas()) as deltas:
            async for delta in deltas:
                role = b"" if delta.choice in begun else self._role_frame(delta.choice, begun)
                begun.add(delta.choice)
                if event := role + self._delta_frame(delta):
                    yield event
        yield self._last_frames()

    async def whole(self) -> dict[str, object]:
        """The answer when every choice has ended."""
        choices: dict[int, _WholeChoice] = {}
        async with aclosing(self._generation.deltas()) as deltas:
            async for delta in deltas:
                if delta.choice not in choices:
                    choices[delta.choice] = _WholeChoice()
                    choices[delta.choice].message.content.append(self._generation.echo_text)
                message = self._read(delta)
                choices[delta.choice].add(message, delta, chat_logprobs(self._names, delta))
        answer = self._head | {
            "choices": [choices[index].to_json(index, self._with_ids) for index in sorted(choices)],
            "usage": usage_of([self._generation]),
            **self._prompt_fields(),
        }
        if self._body.include_timings:
            answer["tandem"] = extension_of([self._generation])
        return answer

    def _prompt_fields(self) -> dict[str, object]:
        """What of the prompt the client asked for, beside the choices as in vLLM."""
        fields: dict[str, object] = {}
        generation = self._generation
        if self._with_ids:
            fields["prompt_token_ids"] = list(generation.prompt_token_ids)
        if (logprobs := generation.prompt_logprobs) is not None:
            fields["prompt_logprobs"] = prompt_logprobs_json(
                self._names,
                generation.prompt_token_ids,
                logprobs,
                self._body.prompt_logprobs or 0,
            )
        return fields

    def _role_frame(self, index: int, begun: set[int]) -> bytes:
        """The stream's first one tells of the prompt as well."""
        choice = _choice(index, {"role": "assistant", "content": self._generation.echo_text})
        usage = self._usage.add(0) if self._usage else None
        others = {} if begun else self._prompt_fields()
        return self._choice_frames.frame(choice, usage=usage, others=others)

    def _delta_frame(self, delta: Delta) -> bytes:
        """Empty where the client would learn nothing: text that is held back."""
        usage = self._usage.add(len(delta.token_ids)) if self._usage else None
        message = self._read(delta)
        if message.is_empty and not (delta.logprobs or self._with_ids):
            return b""
        if self._tells_only_text and message.is_text and not delta.logprobs:
            return self._text_frames.frame(delta.choice, message.content)
        logprobs = chat_logprobs(self._names, delta)
        choice = _choice(delta.choice, delta_of(message), logprobs, message.finish_reason)
        if self._with_ids:
            choice["token_ids"] = list(delta.token_ids)
        return self._choice_frames.frame(choice, usage=usage)

    def _read(self, delta: Delta) -> MessageDelta:
        """The delta as a message's: thoughts and calls told apart, where there may be any."""
        if delta.choice not in self._readers:
            self._readers[delta.choice] = self._generation.reader()
        reader = self._readers[delta.choice]
        if reader is None:
            return MessageDelta(delta.text, finish_reason=delta.finish_reason)
        return reader.read(delta)

    def _last_frames(self) -> bytes:
        """What follows the last choice's end, as one piece."""
        if not (self._body.include_usage or self._body.include_timings):
            return DONE
        event = self._head | {"choices": [], "usage": usage_of([self._generation])}
        if self._body.include_timings:
            event["tandem"] = extension_of([self._generation])
        return frame(event) + DONE


def _choice(
    index: int,
    delta: dict[str, object],
    logprobs: dict[str, object] | None = None,
    finish_reason: str | None = None,
) -> dict[str, object]:
    """One choice of an event."""
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _text_choice(index: int) -> dict[str, object]:
    return _choice(index, {"content": TEXT})


@dataclass(slots=True)
class _WholeChoice:
    """One choice while its answer is collected."""

    message: WholeMessage = field(default_factory=WholeMessage)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)
    has_logprobs: bool = False
    finish_reason: str | None = None

    def add(self, message: MessageDelta, delta: Delta, logprobs: dict[str, object] | None) -> None:
        self.message.add(message)
        self.token_ids += delta.token_ids
        self.finish_reason = message.finish_reason
        content = logprobs["content"] if logprobs else None
        if isinstance(content, list):
            self.has_logprobs = True
            self.logprobs += content

    def to_json(self, index: int, with_ids: bool) -> dict[str, object]:
        logprobs = {"content": self.logprobs, "refusal": None} if self.has_logprobs else None
        return {
            "index": index,
            "message": self.message.to_json(),
            "logprobs": logprobs,
            "finish_reason": self.finish_reason,
            **({"token_ids": self.token_ids} if with_ids else {}),
        }
