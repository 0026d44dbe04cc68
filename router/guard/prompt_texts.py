"""The texts of a prompt, each with whose it is, and the prompt with other texts in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from router.guard.policy import PLAIN_PROMPT
from router.request_spec import ChatPrompt


@dataclass(frozen=True, slots=True)
class RoleText:
    """`role` is a message's, or `PLAIN_PROMPT`."""

    role: str
    text: str


def texts_of(prompt: ChatPrompt | str) -> list[RoleText]:
    """All texts, whatever field of a message they are in: names and arguments of tools too."""
    if isinstance(prompt, str):
        return [RoleText(PLAIN_PROMPT, prompt)]
    found = []
    for message in prompt.messages:
        role = str(message.get("role", ""))
        found += [RoleText(role, text) for text in _strings(message)]
    return found


def with_texts(prompt: ChatPrompt | str, texts: list[str]) -> ChatPrompt | str:
    """The prompt with these texts in the order of `texts_of`."""
    rest = iter(texts)
    if isinstance(prompt, str):
        return next(rest)
    messages = []
    for message in prompt.messages:
        replaced = _replaced(message, lambda _: next(rest))
        assert isinstance(replaced, Mapping)
        messages.append(replaced)
    return ChatPrompt(tuple(messages))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key != "role":
                yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _replaced(value: object, replace: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, Mapping):
        return {k: v if k == "role" else _replaced(v, replace) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(inner, replace) for inner in value)
    return value
