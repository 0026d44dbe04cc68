"""Token ids of a text or a conversation, and back, for clients that count: HTTP and gRPC alike."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from core.errors import BadRequestError, DeadlineError, TandemError
from router.door import Door
from router.request_spec import ChatPrompt
from router.tenants.call import current_call
from router.visit import FINISHED, Served


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
    """Raises BadRequestError, ContextLengthError for a text that no encoding of it would fit the
    model, and what `_visiting` raises."""
    async with _visiting(door, spec.model):
        ids = await door.texts.encode_to_count(spec.prompt, spec.add_special_tokens)
        return Tokens(ids, tuple(door.texts.tokenizer.token_string(i) for i in ids))


async def detokenize(door: Door, ids: Sequence[int], *, model: str | None = None) -> str:
    """Raises BadRequestError for ids outside the vocabulary or more than fit the model, and what
    `_visiting` raises."""
    async with _visiting(door, model):
        limit, vocab_size = door.settings.max_model_len, door.settings.vocab_size
        if len(ids) > limit:
            raise BadRequestError(f"tokens has {len(ids)} ids, more than {limit}", param="tokens")
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            raise BadRequestError(
                f"tokens holds a token id outside 0 to {vocab_size - 1}", param="tokens"
            )
        return await door.texts.decode_to_count(ids)


@contextlib.asynccontextmanager
async def _visiting(door: Door, model: str | None) -> AsyncIterator[None]:
    """A request of its key's, with a place in the house, that has no tokens to be charged.

    Raises what `Visit.enter` and `Visit.charge` raise, OverloadedError, DeadlineError.
    """
    call = current_call()
    timeout_s = door.settings.request_timeout_s
    if call.timeout_s is not None:
        timeout_s = min(timeout_s, call.timeout_s)
    visit = door.enter(door.settings.model if model is None else model, call)
    outcome = "internal_error"
    try:
        async with asyncio.timeout(timeout_s):
            await visit.charge(0, lease_s=timeout_s)
            yield
        outcome = FINISHED
    except TimeoutError:
        outcome = DeadlineError.code
        raise DeadlineError("the deadline passed before the answer was there") from None
    except TandemError as error:
        outcome = error.code
        raise
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    finally:
        door.leave(outcome, None, visit, Served(0, 0, 0))
