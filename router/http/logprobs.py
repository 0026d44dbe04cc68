"""Log-probabilities in the shapes of OpenAI's two APIs."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from core.request import TokenLogprobs
from router.life.choice import Delta
from text.tokenizer import Tokenizer

LOWEST = -9999.0
"""JSON has no infinity; this is what others write for an impossible token."""


def chat_logprobs(tokenizer: Tokenizer, delta: Delta) -> dict[str, object] | None:
    """The `logprobs` object of a chat choice for the tokens of one delta; None without any."""
    if not delta.logprobs:
        return None
    pairs = zip(delta.token_ids, delta.logprobs, strict=True)
    content = [_chat_token(tokenizer, token_id, logprobs) for token_id, logprobs in pairs]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The `logprobs` objects of one completion choice; remembers where in its text it is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of(self, delta: Delta) -> dict[str, object] | None:
        """For the tokens of one delta, in order; None if none were asked for."""
        if delta.unspelled:
            self._offset += len(delta.text)
        if not delta.logprobs:
            return None
        names = [token_name(self._tokenizer, t) for t in delta.token_ids]
        return {
            "tokens": names,
            "token_logprobs": [_finite(p.logprob) for p in delta.logprobs],
            "top_logprobs": [
                {name: _finite(p.logprob)} | self._best(p)
                for name, p in zip(names, delta.logprobs, strict=True)
            ],
            "text_offset": [self._advance(t) for t in delta.token_ids],
        }

    def _best(self, logprobs: TokenLogprobs) -> dict[str, float]:
        return {token_name(self._tokenizer, t): _finite(p) for t, p in logprobs.top}

    def _advance(self, token_id: int) -> int:
        """Where the token's text begins, in characters of the choice's text."""
        begin = self._offset
        if token_id not in self._tokenizer.special_token_ids:
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
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


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text; its bytes where they are no text by themselves, as OpenAI writes them."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _chat_token(tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs) -> dict[str, object]:
    best = [_entry(tokenizer, other, logprob) for other, logprob in logprobs.top]
    return {**_entry(tokenizer, token_id, logprobs.logprob), "top_logprobs": best}


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, object]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": _finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _finite(logprob: float) -> float:
    # Also true for NaN, which compares with nothing.
    return logprob if logprob >= LOWEST else LOWEST


def _concatenated(lists: Iterable[object]) -> list[object]:
    return [item for items in lists if isinstance(items, list) for item in items]
