"""What a chat's choice gains, as its parts: reasoning, text, calls of tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from router.generation import Generation
from router.http.logprobs import chat_logprobs
from text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of one call. `call_id` and `name` come with the first piece."""

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


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
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            logprobs = chat_logprobs(tokenizer, delta)
            content: Any = [] if logprobs is None else logprobs["content"]
            yield ChatDelta(
                text=delta.text,
                logprobs=tuple(content),
                num_tokens=len(delta.token_ids),
                finish_reason=delta.finish_reason,
            )
