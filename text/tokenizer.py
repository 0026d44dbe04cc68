"""Text to token ids and back."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import tokenizers

from core.errors import BadRequestError, ConfigError
from text.card import ModelCard
from text.fields import read_json
from text.gguf_tokenizer import build_gguf_tokenizer
from text.token_spelling import TokenSpelling, spelling_of

LONG_TEXT = 1_000
"""Characters from which on a text is encoded without holding Python's lock."""
KEPT_TOKENS = 8_192
"""Whose bytes are remembered, in about 200 bytes each: few tokens make most of what is said, and
spelling one takes 1.5 us."""


def load_tokenizer(card: ModelCard) -> Tokenizer:
    """Builds the model's tokenizer.

    Raises ConfigError if the files are missing, malformed, or of a kind that cannot be built right.
    """
    source = card.source
    if source.kind == "gguf":
        backend = build_gguf_tokenizer(source.path)
    else:
        backend = _read_tokenizer_json(source.path / "tokenizer.json")
    return Tokenizer(backend, card)


class Tokenizer:
    """A model's tokenizer. Stateless after construction and safe to share between threads."""

    def __init__(self, backend: tokenizers.Tokenizer, card: ModelCard) -> None:
        decoder = backend.decoder.__getstate__().decode() if backend.decoder else None
        self.spelling: TokenSpelling = spelling_of(str(card.source.path), decoder)
        self.bos_token_id = card.bos_token_id
        self.eos_token_ids = card.eos_token_ids
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.max_token_characters = max(map(len, vocabulary), default=1)
        """No token stands for more characters: no spelling of a token is shorter than its text."""
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        self._added_bytes = {i: token.content.encode() for i, token in added.items()}
        self._backend = backend
        self._num_embeddings = card.vocab_size
        self._kept_bytes = functools.lru_cache(KEPT_TOKENS)(self._spelled)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. `add_special_tokens` adds what the model expects around a plain
        text (for many: a begin token); texts from chat templates already have it. Bytes that the
        vocabulary has no token for are left out, as they were in training.

        Raises BadRequestError for text that is not valid Unicode or that the model has no
        embedding for.
        """
        try:
            ids = self._ids(text, add_special_tokens)
        except TypeError:
            raise BadRequestError("the text holds unpaired surrogates: not Unicode") from None
        if self.vocab_size > self._num_embeddings:
            _check_embedded(ids, self._num_embeddings)
        return ids

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) < LONG_TEXT:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        # Only the batch call lets other threads run meanwhile (200 ms without them for 225 k
        # characters, 10 ms with it); it costs a hop to another thread.
        batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return batch[0].ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD, unknown ids nothing."""
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        text = b"".join(self.token_bytes(i) for i in ids if i not in skipped).decode(
            "utf-8", "replace"
        )
        return text.removeprefix(" ") if self.spelling.strips_leading_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for: maybe a part of a character; none for unknown ids."""
        return self._kept_bytes(token_id)

    def _spelled(self, token_id: int) -> bytes:
        added = self._added_bytes.get(token_id)
        if added is not None:
            return added
        token = self._token(token_id)
        return b"" if token is None else self.spelling.to_bytes(token)

    def token_text(self, token_id: int) -> str:
        """A token on its own, for log-probabilities; incomplete characters become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_string(self, token_id: int) -> str:
        """A token as the vocabulary spells it (`Ġthe`); empty for unknown ids."""
        return self._token(token_id) or ""

    def token_id(self, token: str) -> int | None:
        """Id of a token given by its string in the vocabulary (`<|im_end|>`)."""
        return self._backend.token_to_id(token)

    def _token(self, token_id: int) -> str | None:
        try:
            return self._backend.id_to_token(token_id)
        except OverflowError:  # negative, or beyond 32 bits
            return None


def _check_embedded(ids: list[int], num_embeddings: int) -> None:
    largest = max(ids, default=0)
    if largest >= num_embeddings:
        raise BadRequestError(f"the text holds token {largest}, which the model has no weights for")


def _read_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    # Parsed here first: the library reports broken files with bare exceptions.
    if read_json(path) is None:
        raise ConfigError(f"{path} is missing (other tokenizer files are not supported)")
    backend = tokenizers.Tokenizer.from_file(str(path))
    # Files saved after training may cut or pad every text.
    backend.no_truncation()
    backend.no_padding()
    return backend
