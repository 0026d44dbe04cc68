"""Token ids of a text or a conversation, and back, for clients that count: HTTP and gRPC alike."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import BadRequestError, DeadlineError
from router.door import Door
from router.limits import check_model
from router.request_spec import ChatPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeSpec:
    """What to tokenise. `model` None is the served one."""

    model: str | None = None
    prompt: ChatPrompt | str
    add_special_tokens: bool | None = None
    """None: those that the model expects around plain texts; templates write them themselves."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids, and each one's string in the vocabulary."""

    ids: tuple[int, ...]
    strings: tuple[str, ...]


async def tokenize(door: Door, spec: TokenizeSpec) -> Tokens:
    """Raises BadRequestError, ModelNotFoundError, DeadlineError, and ContextLengthError for a text
    that no encoding of it would fit the model."""
    _check_model(door, spec.model)
    try:
        async with asyncio.timeout(door.settings.request_timeout_s):
            ids = await door.texts.encode(spec.prompt, spec.add_special_tokens)
    except TimeoutError:
        raise DeadlineError("the deadline passed before the text was tokenised") from None
    return Tokens(ids, tuple(door.texts.tokenizer.token_string(i) for i in ids))


def detokenize(door: Door, ids: Sequence[int], *, model: str | None = None) -> str:
    """Raises BadRequestError for ids outside the vocabulary, ModelNotFoundError."""
    _check_model(door, model)
    limit, vocab_size = door.settings.max_model_len, door.settings.vocab_size
    if len(ids) > limit:
        raise BadRequestError(f"tokens has {len(ids)} ids, more than {limit}", param="tokens")
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        raise BadRequestError(
            f"tokens holds a token id outside 0 to {vocab_size - 1}", param="tokens"
        )
    return door.texts.tokenizer.decode(ids, skip_special_tokens=False)


def _check_model(door: Door, model: str | None) -> None:
    if model is not None:
        check_model(model, door.settings.model)
