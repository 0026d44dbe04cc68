"""Turns a growing sequence of token ids into text, piece by piece.

push([a, b]) -> "He"     only text that no later token can change
push([c])    -> ""       c is the first half of a character: held back
push([d])    -> "é"
flush()      -> ""       what is held back, as U+FFFD, when the sequence ends in mid-character
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from text.tokenizer import Tokenizer


class Detokenizer:
    """One sequence's incremental decoder; all pieces together equal `Tokenizer.decode`.

    A token costs its own length only: tokens stand for bytes, so nothing before is looked at again.
    `after_text` says that the sequence goes on from earlier text, whose end keeps a leading space
    that SentencePiece models would otherwise lose. `kept` are special tokens to keep all the same.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        *,
        after_text: bool = False,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids - kept if skip_special_tokens else frozenset()
        self._begun = b""
        """The first bytes of a character whose end has not come yet."""
        self._strip_space = tokenizer.spelling.strips_leading_space and not after_text

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that is final with these tokens; never ends inside a character."""
        token_bytes, skipped = self._tokenizer.token_bytes, self._skipped
        data = self._begun + b"".join([token_bytes(i) for i in token_ids if i not in skipped])
        text, num_decoded = codecs.utf_8_decode(data, "replace", False)
        self._begun = data[num_decoded:]
        return self._stripped(text)

    def flush(self) -> str:
        """The rest, when no token follows."""
        begun, self._begun = self._begun, b""
        return self._stripped(begun.decode("utf-8", "replace"))

    @property
    def in_character(self) -> bool:
        """Whether the last token ended inside a character, which is held back."""
        return bool(self._begun)

    def _stripped(self, text: str) -> str:
        if self._strip_space and text:
            self._strip_space = False
            return text.removeprefix(" ")
        return text
