"""Text to token ids and back, off the event loop where that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from core.errors import ContextLengthError
from router.life.choice import Choice
from router.rendering import Rendering
from router.request_spec import ChatPrompt
from text.chat_template import ChatTemplate
from text.detokenizer import Detokenizer
from text.stop_strings import StopMatcher
from text.tokenizer import Tokenizer

INLINE_CHARACTERS = 1_000
"""Below this a tokenisation (0.3 us a character) is about as short as the hop to a thread and
back (0.1-0.2 ms on a busy machine), so threads would only add to the time to the first token.
Detokenising is always done inline: 3 us a token."""

MESSAGE_CHARACTERS = 32
"""What a template writes around each message, more or less."""


class Texts:
    """The model's tokenizer and template with threads to run them in. Close it when done."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        num_threads: int,
        max_model_len: int,
    ) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._max_model_len = max_model_len
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenize")

    async def encode(self, prompt: ChatPrompt | str | tuple[int, ...]) -> tuple[int, ...]:
        """Token ids of a prompt.

        Raises BadRequestError for what can't be rendered or encoded, ContextLengthError for a text
        that is too long for the model however it is encoded: 16 MB would take 15 s.
        """
        if isinstance(prompt, tuple):
            return prompt
        if _num_characters(prompt) <= INLINE_CHARACTERS:
            return self._encode(prompt)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._encode, prompt)

    async def tokenize(
        self, prompt: ChatPrompt | str, rendering: Rendering, add_special_tokens: bool | None
    ) -> tuple[int, ...]:
        """Token ids of what need not be a prompt: rendered and encoded as the client says.

        `add_special_tokens` None: as `encode` does. Raises what `encode` raises.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, self._tokenize, prompt, rendering, add_special_tokens
        )

    def choices(self, n: int, stop: Sequence[str], min_tokens: int) -> list[Choice]:
        """`n` choices with nothing emitted yet."""
        return [
            Choice(i, Detokenizer(self.tokenizer), StopMatcher(stop), min_tokens) for i in range(n)
        ]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _encode(self, prompt: ChatPrompt | str) -> tuple[int, ...]:
        if isinstance(prompt, ChatPrompt):
            rendered = self._template.render(prompt.messages)
            self._check_length(rendered, "messages")
            return tuple(self.tokenizer.encode(rendered, add_special_tokens=False))
        self._check_length(prompt, "prompt")
        return tuple(self.tokenizer.encode(prompt, add_special_tokens=True))

    def _tokenize(
        self, prompt: ChatPrompt | str, rendering: Rendering, add_special_tokens: bool | None
    ) -> tuple[int, ...]:
        special = isinstance(prompt, str) if add_special_tokens is None else add_special_tokens
        text, param = prompt, "prompt"
        if isinstance(text, ChatPrompt):
            param = "messages"
            text = self._template.render(
                text.messages,
                rendering.tools,
                rendering.add_generation_prompt,
                rendering.continue_final_message,
                **(rendering.kwargs or {}),
            )
        self._check_length(text, param)
        return tuple(self.tokenizer.encode(text, add_special_tokens=special))

    def _check_length(self, text: str, param: str) -> None:
        most = self._max_model_len * self.tokenizer.max_token_characters
        if len(text) > most:
            raise ContextLengthError(
                f"the model's limit is {self._max_model_len} tokens, which are {most} characters "
                f"at the very most; the prompt has {len(text)} characters",
                param=param,
            )


def _num_characters(prompt: ChatPrompt | str) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    texts = (str(message.get("content", "")) for message in prompt.messages)
    return sum(len(text) + MESSAGE_CHARACTERS for text in texts)
