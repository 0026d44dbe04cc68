"""The same prompt with the policy's text before it, as the model would read it."""

from __future__ import annotations

from dataclasses import replace

from core.errors import BadRequestError
from router.request_spec import ChatPrompt, RequestSpec, chat_message
from router.texts import Texts


def under_policy(prompt: ChatPrompt, text: str) -> ChatPrompt:
    """The chat with the policy's text before all that its system message says.

    One message holds both: many templates know one system message, at the beginning.
    """
    messages = prompt.messages
    said = messages[0].get("content") if messages else None
    if messages and messages[0].get("role") == "system" and isinstance(said, str):
        first = {**messages[0], "content": f"{text}\n\n{said}"}
        return replace(prompt, messages=(first, *messages[1:]))
    return replace(prompt, messages=(chat_message("system", text), *messages))


async def policy_token_ids(
    texts: Texts, spec: RequestSpec, token_ids: tuple[int, ...], text: str
) -> tuple[int, ...]:
    """Of the request's prompt, whose own token ids are given, under the policy.

    The text is a system message where the prompt is a chat. Before all others its tokens come:
    plain prompts, prompts that were cut to their last tokens, and chats whose template refuses a
    system message. Raises BadRequestError for a text that can't be encoded.
    """
    if isinstance(spec.prompt, ChatPrompt) and spec.truncate_prompt_tokens is None:
        try:
            return await texts.encode(under_policy(spec.prompt, text), spec.add_special_tokens)
        except BadRequestError:
            pass
    head = await texts.encode(f"{text}\n\n", add_special_tokens=False)
    begin = await texts.encode("", add_special_tokens=True)
    return placed_before(token_ids, head, begin)


def placed_before(
    token_ids: tuple[int, ...], head: tuple[int, ...], begin: tuple[int, ...]
) -> tuple[int, ...]:
    """`head` before a prompt, but after what begins every text, where the prompt begins with it."""
    size = len(begin) if token_ids[: len(begin)] == begin else 0
    return (*token_ids[:size], *head, *token_ids[size:])
