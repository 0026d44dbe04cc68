"""What a chat's choice gains, as its parts: reasoning, text, calls of tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from router.generation import Generation
from router.http.logprobs import TokenNames, chat_logprobs
from router.message.reader import CallDelta, MessageDelta
from text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """One gain. `logprobs` are those of its tokens, in the shape of a chat's `content`."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    logprobs: tuple[dict[str, Any], ...] = ()
    num_tokens: int = 0
    finish_reason: str | None = None


async def chat_deltas(
    generation: Generation, tokenizer: Tokenizer
) -> AsyncGenerator[ChatDelta, None]:
    """Of a request with one choice. Raises TandemError; close it always."""
    names = TokenNames(tokenizer, as_ids=False)
    reader, has_begun = None, False
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            if not has_begun:
                reader, has_begun = generation.reader(), True
            message = MessageDelta(delta.text, finish_reason=delta.finish_reason)
            if reader is not None:
                message = reader.read(delta)
            logprobs = chat_logprobs(names, delta)
            content: Any = [] if logprobs is None else logprobs["content"]
            yield ChatDelta(
                text=message.content,
                reasoning=message.thoughts,
                calls=message.calls,
                logprobs=tuple(content),
                num_tokens=len(delta.token_ids),
                finish_reason=message.finish_reason,
            )
