"""Text to token ids and back, off the event loop where that takes long."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from core.errors import ContextLengthError
from router.dialect import Dialect, markers_kept, prompt_tail
from router.life.choice import Choice
from router.request_spec import ChatPrompt
from router.structure.answer_grammar import Wish, answer_grammar
from router.structure.grammar_check import GrammarCheck
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
        dialect: Dialect,
        grammars: GrammarCheck,
    ) -> None:
        """`grammars` is closed with this."""
        self.tokenizer = tokenizer
        self.dialect = dialect
        self._grammars = grammars
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

    async def grammar(self, wish: Wish, prompt: Sequence[int], *, is_chat: bool) -> str:
        """The canonical text of the grammar of an answer to this prompt.

        Raises BadRequestError that names the field at fault.
        """
        dialect = self.dialect if is_chat else dataclasses.replace(self.dialect, thinks=False)
        write = partial(answer_grammar, wish, dialect, self.tokenizer, self.tail(prompt))
        return await self._grammars.text(write, wish.param)

    def tail(self, prompt: Sequence[int]) -> str:
        """The end of a prompt's text."""
        return prompt_tail(self.tokenizer, prompt)

    def choices(
        self, n: int, stop: Sequence[str], min_tokens: int, *, calls: bool = False
    ) -> list[Choice]:
        """`n` choices with nothing emitted yet; `calls`: their text may hold calls."""
        kept = markers_kept(self.dialect, self.tokenizer, calls=calls)
        return [
            Choice(i, Detokenizer(self.tokenizer, kept=kept), StopMatcher(stop), min_tokens)
            for i in range(n)
        ]

    def close(self) -> None:
        self._grammars.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _encode(self, prompt: ChatPrompt | str) -> tuple[int, ...]:
        if isinstance(prompt, ChatPrompt):
            messages, tools = self.dialect.messages(prompt.messages, prompt.tools)
            rendered = self._template.render(messages, tools)
            self._check_length(rendered, "messages")
            return tuple(self.tokenizer.encode(rendered, add_special_tokens=False))
        self._check_length(prompt, "prompt")
        return tuple(self.tokenizer.encode(prompt, add_special_tokens=True))

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
    told = sum(len(text) + MESSAGE_CHARACTERS for text in texts)
    return told + sum(len(str(tool)) for tool in prompt.tools)
