"""The texts of a prompt, each with whose it is, and the prompt with other texts in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from router.guard.policy import PLAIN_PROMPT
from router.request_spec import ChatPrompt

SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class RoleText:
    """`role` is a message's, or `PLAIN_PROMPT`."""

    role: str
    text: str


def texts_of(prompt: ChatPrompt | str) -> list[RoleText]:
    """All texts, whatever field of a message they are in: names and arguments of tools too.

    What a chat has beside its messages was said by who wrote the application, as system messages.
    """
    if isinstance(prompt, str):
        return [RoleText(PLAIN_PROMPT, prompt)]
    found = []
    for part in fields(prompt):
        value = getattr(prompt, part.name)
        if part.name == "messages":
            for message in value:
                role = str(message.get("role", ""))
                found += [RoleText(role, text) for text in _strings(message)]
        else:
            found += [RoleText(SYSTEM, text) for text in _strings(value)]
    return found


def with_texts(prompt: ChatPrompt | str, texts: Sequence[str]) -> ChatPrompt | str:
    """The prompt with these texts in the order of `texts_of`."""
    rest = iter(texts)
    if isinstance(prompt, str):
        return next(rest)
    changed = {
        part.name: _replaced(getattr(prompt, part.name), lambda _: next(rest))
        for part in fields(prompt)
    }
    return replace(prompt, **changed)


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


def _replaced(value: Any, other: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return other(value)
    if isinstance(value, Mapping):
        return {k: v if k == "role" else _replaced(v, other) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(inner, other) for inner in value)
    return value
