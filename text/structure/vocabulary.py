"""A model's vocabulary as the grammar library sees it: the bytes of every token."""

from __future__ import annotations

import llguidance

from text.tokenizer import Tokenizer


def grammar_vocabulary(tokenizer: Tokenizer, num_logits: int) -> llguidance.LLTokenizer:
    """The vocabulary, padded to the model's logits: tokens without text are never allowed.

    It is made of the bytes that our own tokenizer knows, so that it is the same for files of every
    kind. Takes a tenth of a second for 50,000 tokens.
    """
    size = max(num_logits, tokenizer.vocab_size)
    ends = [token_id for token_id in tokenizer.eos_token_ids if token_id < size]
    # A model without an end token: an id that it can't sample, so that only completion ends.
    eos = ends or [size]
    words = llguidance.TokenizerWrapper(_Words(tokenizer, eos[0]))
    return llguidance.LLTokenizer(words, n_vocab=size if ends else size + 1, eos_token=eos)


_BEFORE = "\n"
"""Text that never becomes one token with what follows it."""


class _Words:
    """What `TokenizerWrapper` asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(
            token_id for token_id in tokenizer.special_token_ids if token_id < len(self.tokens)
        )
        self._tokenizer = tokenizer
        self._before = self._encode(_BEFORE)

    def __call__(self, text: str) -> list[int]:
        """The tokens of text that goes on from other text: where only one text is allowed, these
        are the only tokens that are."""
        if not self._tokenizer.spelling.strips_leading_space:
            return self._encode(text)
        # The encoder puts a space of its own before every text
        after = self._encode(_BEFORE + text)
        known = after[: len(self._before)] == self._before
        return after[len(self._before) :] if known else self._encode(text)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)
