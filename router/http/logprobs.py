"""Log-probabilities in the shapes of OpenAI's two APIs."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from core.request import TokenLogprobs
from router.life.choice import Delta
from text.tokenizer import Tokenizer

LOWEST = -9999.0
"""JSON has no infinity; this is what others write for an impossible token."""


class TokenNames:
    """How tokens are called in answers: by their texts, or as `token_id:17`."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def text(self, token_id: int) -> str:
        """Characters that are incomplete in it become U+FFFD: its bytes stand beside it."""
        if self._as_ids:
            return f"token_id:{token_id}"
        return self._tokenizer.token_text(token_id)

    def name(self, token_id: int) -> str:
        """Its bytes where they are no text by themselves, as OpenAI writes them."""
        if self._as_ids:
            return f"token_id:{token_id}"
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def data(self, token_id: int) -> bytes:
        return self._tokenizer.token_bytes(token_id)


def chat_logprobs(names: TokenNames, delta: Delta) -> dict[str, object] | None:
    """The `logprobs` object of a chat choice for the tokens of one delta; None without any."""
    if not delta.logprobs:
        return None
    pairs = zip(delta.token_ids, delta.logprobs, strict=True)
    content = [_chat_token(names, token_id, logprobs) for token_id, logprobs in pairs]
    return {"content": content, "refusal": None}


def prompt_logprobs_json(
    names: TokenNames,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs | None],
    num_top: int,
) -> list[dict[str, object] | None]:
    """As vLLM's `prompt_logprobs`: for each token of the prompt itself and the best others by id.

    `rank` counts from 1; it is null for a token that is not among those that were asked for.
    """
    return [
        None if own is None else _prompt_token(names, token_id, own, num_top)
        for token_id, own in zip(token_ids, logprobs, strict=True)
    ]


class CompletionLogprobs:
    """The `logprobs` objects of one completion choice; remembers where in its text it is."""

    def __init__(
        self, tokenizer: Tokenizer, names: TokenNames, *, skip_special_tokens: bool = True
    ) -> None:
        self._names = names
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of(self, delta: Delta) -> dict[str, object] | None:
        """For the tokens of one delta, in order; None if none were asked for."""
        if delta.unspelled:
            self._offset += len(delta.text)
        return self._object(delta.token_ids, delta.logprobs) if delta.logprobs else None

    def of_prompt(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], num_top: int
    ) -> dict[str, object]:
        """For a prompt that comes first in the text."""
        return self._object(
            token_ids, [p and TokenLogprobs(p.logprob, p.top[:num_top]) for p in logprobs]
        )

    def _object(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]
    ) -> dict[str, object]:
        names = [self._names.name(token_id) for token_id in token_ids]
        return {
            "tokens": names,
            "token_logprobs": [p and _finite(p.logprob) for p in logprobs],
            "top_logprobs": [
                p and {name: _finite(p.logprob)} | self._best(p)
                for name, p in zip(names, logprobs, strict=True)
            ],
            "text_offset": [self._advance(token_id) for token_id in token_ids],
        }

    def _best(self, logprobs: TokenLogprobs) -> dict[str, float]:
        return {self._names.name(t): _finite(p) for t, p in logprobs.top}

    def _advance(self, token_id: int) -> int:
        """Where the token's text begins, in characters of the choice's text."""
        begin = self._offset
        if token_id not in self._skipped:
            self._offset += len(self._decoder.decode(self._names.data(token_id)))
        return begin


def joined_completion_logprobs(
    parts: Sequence[dict[str, object] | None],
) -> dict[str, object] | None:
    """All parts of a choice as one object, for an answer that isn't streamed."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    keys = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {key: _concatenated(part[key] for part in present) for key in keys}


def _chat_token(names: TokenNames, token_id: int, logprobs: TokenLogprobs) -> dict[str, object]:
    best = [_entry(names, other, logprob) for other, logprob in logprobs.top]
    return {**_entry(names, token_id, logprobs.logprob), "top_logprobs": best}


def _entry(names: TokenNames, token_id: int, logprob: float) -> dict[str, object]:
    return {
        "token": names.text(token_id),
        "logprob": _finite(logprob),
        "bytes": list(names.data(token_id)),
    }


def _prompt_token(
    names: TokenNames, token_id: int, own: TokenLogprobs, num_top: int
) -> dict[str, object]:
    top = own.top[:num_top]
    ranks = {other: rank for rank, (other, _) in enumerate(top, 1)}
    entries = {token_id: own.logprob} | dict(top)
    return {
        str(other): {
            "logprob": _finite(logprob),
            "rank": ranks.get(other),
            "decoded_token": names.text(other),
        }
        for other, logprob in entries.items()
    }


def _finite(logprob: float) -> float:
    # Also true for NaN, which compares with nothing.
    return logprob if logprob >= LOWEST else LOWEST


def _concatenated(lists: Iterable[object]) -> list[object]:
    return [item for items in lists if isinstance(items, list) for item in items]
