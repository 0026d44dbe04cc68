"""Text to token ids and back, off the event loop where that takes long."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from core.errors import BadRequestError, ContextLengthError
from core.request import PinnedPrefix
from router.bounded_threads import BoundedThreads
from router.dialect import Dialect, markers_kept, prompt_tail
from router.life.choice import Choice
from router.message.thoughts import Thinking
from router.pinning import last_of_each_ttl, num_common, with_mark
from router.request_spec import ChatPrompt, RequestSpec
from router.structure.answer_grammar import Wish, answer_grammar
from router.structure.grammar_check import GrammarCheck
from text.bad_words import bad_word_tokens
from text.chat_template import ChatTemplate
from text.detokenizer import Detokenizer
from text.stop_strings import StopMatcher
from text.tokenizer import Tokenizer

INLINE_CHARACTERS = 1_000
"""Below this a tokenisation (0.3 us a character) is about as short as the hop to a thread and
back (0.1-0.2 ms on a busy machine), so threads would only add to the time to the first token."""

INLINE_TOKENS = 100
"""The same for detokenising, which takes 3 us a token. Answers are always detokenised inline: they
come by few tokens."""

MESSAGE_CHARACTERS = 32
"""What a template writes around each message, more or less."""

MAX_TEMPLATES = 32
"""Compiled templates of clients that are kept; compiling one takes some milliseconds."""

T = TypeVar("T")


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
        trusts_templates: bool = False,
    ) -> None:
        """`grammars` is closed with this. Templates of clients are refused unless the operator
        trusts them."""
        self.tokenizer = tokenizer
        self.dialect = dialect
        self._grammars = grammars
        self._template = template
        self._client_template = functools.lru_cache(MAX_TEMPLATES)(template.with_template)
        self._trusts_templates = trusts_templates
        self._max_model_len = max_model_len
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="tokenize")
        self._counting = BoundedThreads(max(1, num_threads // 2), name="count")

    async def encode(
        self,
        prompt: ChatPrompt | str | tuple[int, ...],
        add_special_tokens: bool | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a prompt; see `RequestSpec.add_special_tokens`.

        Raises BadRequestError for what can't be rendered or encoded, ContextLengthError for a text
        that is too long for the model however it is encoded: 16 MB would take 15 s.
        """
        if isinstance(prompt, tuple):
            return prompt
        encode = functools.partial(self._encode, prompt, add_special_tokens)
        return await self._run(encode, inline=_is_short(prompt))

    async def encode_to_count(
        self, prompt: ChatPrompt | str, add_special_tokens: bool | None = None
    ) -> tuple[int, ...]:
        """As `encode`, for who wants nothing but the tokens: in threads of their own, so that no
        prompt waits behind them. Raises OverloadedError, too, when too many wait for these."""
        encode = functools.partial(self._encode, prompt, add_special_tokens)
        return encode() if _is_short(prompt) else await self._counting.run(encode)

    async def decode_to_count(self, token_ids: Sequence[int]) -> str:
        """The text of these ids, special tokens included. Raises OverloadedError."""
        decode = functools.partial(self.tokenizer.decode, token_ids, skip_special_tokens=False)
        is_short = len(token_ids) <= INLINE_TOKENS
        return decode() if is_short else await self._counting.run(decode)

    async def pinned_prefixes(
        self,
        spec: RequestSpec,
        prompt: ChatPrompt | str | tuple[int, ...],
        token_ids: Sequence[int],
    ) -> list[PinnedPrefix]:
        """What the client wants to stay cached of `prompt`, whose tokens these are."""
        prefixes: list[PinnedPrefix] = []
        if isinstance(prompt, ChatPrompt) and prompt.breakpoints:
            special = bool(spec.add_special_tokens)
            find = functools.partial(self._marked_prefixes, prompt, token_ids, special)
            prefixes += await self._run(find, inline=_is_short(prompt))
        if spec.cache_ttl_s is not None:
            prefixes.append(PinnedPrefix(len(token_ids), spec.cache_ttl_s))
        return prefixes

    async def grammar(self, wish: Wish, thinking: Thinking) -> str:
        """The canonical text of the grammar of an answer that begins so.

        Raises BadRequestError that names the field at fault.
        """
        write = functools.partial(answer_grammar, wish, self.dialect, self.tokenizer, thinking)
        return await self._grammars.text(write, wish.param)

    async def warm_up(self) -> None:
        """Makes the vocabulary of grammars."""
        await self._grammars.warm_up()

    def tail(self, prompt: Sequence[int]) -> str:
        """The end of a prompt's text."""
        return prompt_tail(self.tokenizer, prompt)

    async def bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Token sequences that spell these words."""
        if not words:
            return ()
        num_characters = sum(map(len, words))
        encode = functools.partial(bad_word_tokens, self.tokenizer, words)
        return await self._run(encode, inline=num_characters <= INLINE_CHARACTERS)

    def choices(self, spec: RequestSpec) -> list[Choice]:
        """The request's choices with nothing emitted yet."""
        kept = markers_kept(self.dialect, self.tokenizer, calls=spec.tooling is not None)
        unsaid = frozenset[int]()
        if not spec.include_stop_str_in_output:
            unsaid = frozenset((*self.tokenizer.eos_token_ids, *spec.stop_token_ids))
        return [
            Choice(
                index,
                Detokenizer(
                    self.tokenizer,
                    spec.skip_special_tokens,
                    kept=kept,
                    after_text=_goes_on(spec.prompt),
                ),
                StopMatcher(spec.stop, spec.include_stop_str_in_output),
                spec.min_tokens,
                unsaid,
            )
            for index in range(spec.num_choices)
        ]

    def plain_choice(self, index: int = 0, emitted: Iterable[int] = ()) -> Choice:
        """For tokens that are asked for on behalf of another choice, after what it has emitted."""
        choice = Choice(index, Detokenizer(self.tokenizer), StopMatcher(()), 0)
        choice.token_ids.extend(emitted)
        return choice

    def close(self) -> None:
        self._grammars.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._counting.close()

    async def _run(self, action: Callable[[], T], *, inline: bool) -> T:
        if inline:
            return action()
        return await asyncio.get_running_loop().run_in_executor(self._threads, action)

    def _encode(self, prompt: ChatPrompt | str, special: bool | None) -> tuple[int, ...]:
        if isinstance(prompt, ChatPrompt):
            rendered = self._rendered(prompt)
            self._check_length(rendered, "messages")
            return tuple(self.tokenizer.encode(rendered, add_special_tokens=bool(special)))
        self._check_length(prompt, "prompt")
        return tuple(self.tokenizer.encode(prompt, add_special_tokens=special is not False))

    def _marked_prefixes(
        self, prompt: ChatPrompt, token_ids: Sequence[int], special: bool
    ) -> list[PinnedPrefix]:
        """None for a mark in a message that the template does not print."""
        prefixes: list[PinnedPrefix] = []
        rendered = self._rendered(prompt)
        for place in last_of_each_ttl(prompt.breakpoints):
            marked = self._rendered(with_mark(prompt, place))
            if marked == rendered:
                continue
            text = rendered[: num_common(rendered, marked)]
            ids = self.tokenizer.encode(text, add_special_tokens=special)
            prefixes.append(PinnedPrefix(num_common(ids, token_ids), place.ttl_s))
        return prefixes

    def _rendered(self, prompt: ChatPrompt) -> str:
        template = self._template
        if prompt.template is not None:
            if not self._trusts_templates:
                raise BadRequestError(
                    "chat_template is refused: router.trust_request_chat_template is off",
                    param="chat_template",
                    code="unsupported_parameter",
                )
            template = self._client_template(prompt.template)
        messages, tools = self.dialect.messages(prompt.messages, prompt.tools)
        return template.render(
            messages,
            tools,
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            kwargs=prompt.template_kwargs,
        )

    def _check_length(self, text: str, param: str) -> None:
        most = self._max_model_len * self.tokenizer.max_token_characters
        if len(text) > most:
            raise ContextLengthError(
                f"the model's limit is {self._max_model_len} tokens, which are {most} characters "
                f"at the very most; the prompt has {len(text)} characters",
                param=param,
            )


def _goes_on(prompt: ChatPrompt | str | tuple[int, ...]) -> bool:
    """Whether the answer is the same text as the prompt, so that it may begin with a space."""
    return prompt.continue_final_message if isinstance(prompt, ChatPrompt) else True


def _is_short(prompt: ChatPrompt | str) -> bool:
    """Whether to encode it takes no longer than to hand it to a thread."""
    if isinstance(prompt, ChatPrompt) and prompt.template is not None:
        return False  # a client's template has to be compiled
    return _num_characters(prompt) <= INLINE_CHARACTERS


def _num_characters(prompt: ChatPrompt | str) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    texts = (str(message.get("content", "")) for message in prompt.messages)
    told = sum(len(text) + MESSAGE_CHARACTERS for text in texts)
    return told + sum(len(str(tool)) for tool in prompt.tools)
