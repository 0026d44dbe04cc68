"""A tokenizer built from a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from core.errors import ConfigError
from text.fields import Fields
from text.gguf_metadata import read_gguf
from text.sentencepiece_merges import merges_by_score

# Token types of llama.cpp.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# Contractions, words with one leading non-letter, numbers, punctuation, line ends, spaces. The two
# families differ in how many digits make a piece.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """What `tokenizer.ggml.pre` implies beyond vocabulary and merges."""

    build: Callable[[], pre_tokenizers.PreTokenizer]
    ignore_merges: bool = False
    adds_bos: bool = False
    nfc: bool = False


def build_gguf_tokenizer(path: Path) -> Tokenizer:
    """Builds the tokenizer a GGUF file describes.

    Raises ConfigError for a kind or pre-tokenizer that isn't known exactly: a near miss would give
    other ids than the model was trained on, without anybody noticing.
    """
    fields = Fields(str(path), read_gguf(path).values)
    model = fields.text("tokenizer.ggml.model")
    if model == "gpt2":
        return _byte_level_bpe(fields)
    if model == "llama":
        return _sentencepiece_bpe(fields)
    raise ConfigError(
        f"{path}: tokenizer.ggml.model {model!r} is not supported; supported: gpt2, llama"
    )


def _byte_level_bpe(fields: Fields) -> Tokenizer:
    pre = _pre_tokenizer(fields)
    vocabulary = {token: i for i, token in enumerate(fields.texts("tokenizer.ggml.tokens"))}
    merges = _merges(fields, vocabulary)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.ignore_merges)
    )
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre.build()
    tokenizer.decoder = decoders.ByteLevel()
    _add_special_tokens(tokenizer, fields)
    _add_bos(tokenizer, fields, default=pre.adds_bos)
    return tokenizer


def _sentencepiece_bpe(fields: Fields) -> Tokenizer:
    tokens = fields.texts("tokenizer.ggml.tokens")
    scores = fields.numbers("tokenizer.ggml.scores")
    types = fields.integers("tokenizer.ggml.token_type")
    if not len(tokens) == len(scores) == len(types):
        raise ConfigError(f"{fields.where}: tokens, scores and token_type differ in length")
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges_by_score(tokens, scores, types),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "\u2581")]
    ends: list[decoders.Decoder] = []
    if fields.flag("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("\u2581"))
        ends.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    )
    _add_special_tokens(tokenizer, fields)
    _add_bos(tokenizer, fields, default=True)
    return tokenizer


def _pre_tokenizer(fields: Fields) -> _PreTokenizer:
    known = _known_pre_tokenizers()
    name = fields.text("tokenizer.ggml.pre", "default")
    if name not in known:
        raise ConfigError(
            f"{fields.where}: tokenizer.ggml.pre {name!r} is not supported; supported: "
            f"{', '.join(known)}. The original Hugging Face directory may work"
        )
    return known[name]


def _known_pre_tokenizers() -> dict[str, _PreTokenizer]:
    llama3 = _PreTokenizer(lambda: _words(r"\p{N}{1,3}"), ignore_merges=True, adds_bos=True)
    return {
        "smollm": _PreTokenizer(_digits_then_bytes),
        "gpt-2": _PreTokenizer(lambda: pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "llama-bpe": llama3,
        "llama3": llama3,
        "llama-v3": llama3,
        "qwen2": _PreTokenizer(lambda: _words(r"\p{N}"), nfc=True),
    }


def _digits_then_bytes() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )


def _words(digits: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS.format(digits=digits)), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _merges(fields: Fields, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for merge in fields.texts("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise ConfigError(f"{fields.where}: merge {merge!r} is not in the vocabulary")
        merges.append((left, right))
    return merges


def _add_special_tokens(tokenizer: Tokenizer, fields: Fields) -> None:
    """Control and user-defined tokens are found in text before anything else looks at it."""
    tokens = fields.texts("tokenizer.ggml.tokens")
    types = fields.integers("tokenizer.ggml.token_type")
    for kind in (_CONTROL, _USER_DEFINED):
        chosen = [
            AddedToken(token, normalized=False, special=kind == _CONTROL)
            for token, token_kind in zip(tokens, types, strict=False)
            if token_kind == kind
        ]
        if kind == _CONTROL:
            tokenizer.add_special_tokens(chosen)
        else:
            tokenizer.add_tokens(chosen)


def _add_bos(tokenizer: Tokenizer, fields: Fields, *, default: bool) -> None:
    bos_id = fields.integer("tokenizer.ggml.bos_token_id", -1)
    if bos_id < 0 or not fields.flag("tokenizer.ggml.add_bos_token", default):
        return
    bos = tokenizer.id_to_token(bos_id)
    if bos is None:
        raise ConfigError(f"{fields.where}: tokenizer.ggml.bos_token_id {bos_id} is no token")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_id)]
    )
