"""Which tokens of an answer begin, or go on with, a term of the policy's rules."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace

from router.guard.term_stream import Lexicon, TermStream
from text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenWatch:
    """An answer so far. Immutable, so that what was drawn in vain leaves no trace."""

    tokenizer: Tokenizer
    stream: TermStream
    suspicious: bool = False
    """The last token begins, goes on with, or ends a term."""
    pending: bytes = b""
    """The beginning of a character."""

    def after(self, token_id: int) -> TokenWatch:
        """The answer with one more token."""
        stream, begin = self.stream.copy(), self.stream.position
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(self.pending + self._bytes(token_id))
        complete = any(finding.end > begin for finding in stream.push(text))
        return replace(
            self,
            stream=stream,
            suspicious=complete or stream.begun,
            pending=decoder.getstate()[0],
        )

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self.tokenizer.special_token_ids:
            return b""
        return self.tokenizer.token_bytes(token_id)


def new_watch(tokenizer: Tokenizer, lexicon: Lexicon) -> TokenWatch | None:
    """Of an answer without tokens; None where there are no terms to look for."""
    return TokenWatch(tokenizer, TermStream(lexicon)) if lexicon else None
