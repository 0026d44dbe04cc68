"""Words that must not be generated, as the token sequences that would spell them."""

from __future__ import annotations

from collections.abc import Sequence

from text.tokenizer import Tokenizer


def bad_word_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each word at the start of a text and after a space, as vLLM's `bad_words` mean it.

    The spelling after a space counts if it differs from the first token on and is as long; a longer
    one holds the word as a part, which the first sequence forbids already. Other spellings of the
    same word (other tokens, capitals) are other words.
    """
    sequences: list[tuple[int, ...]] = []
    for word in words:
        bare = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        sequences.append(bare)
        if spaced and bare and spaced[0] != bare[0] and len(spaced) == len(bare):
            sequences.append(spaced)
    return tuple(dict.fromkeys(sequence for sequence in sequences if sequence))
