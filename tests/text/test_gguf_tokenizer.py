"""Tokenizers built from GGUF metadata: pre-tokenizers, special tokens, SentencePiece scores."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes_model_files import finish, gguf_writer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from core.errors import ConfigError
from text.gguf_tokenizer import build_gguf_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def bpe_file(path: Path, pre: str | None, *, add_bos: bool | None = None) -> Path:
    """All single bytes, one merge, and two special tokens."""
    from text.token_spelling import _byte_level_table

    tokens = [*_byte_level_table(), "hi", "<s>", "<tool>"]
    writer = gguf_writer(path)
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([NORMAL] * 257 + [CONTROL, USER_DEFINED])
    writer.add_token_merges(["h i"])
    writer.add_bos_token_id(257)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    finish(writer)
    return path


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    assert tokenizer.pre_tokenizer is not None
    return [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["I", "'m", " ", "1", "2", "3", "4", " x", "!?", "\n\n ", " y"]),
        ("gpt-2", ["I", "'m", " 1234", " x", "!?", "\n\n ", " y"]),
        ("llama-bpe", ["I", "'m", " ", "123", "4", " x", "!?\n\n", " ", " y"]),
        ("qwen2", ["I", "'m", " ", "1", "2", "3", "4", " x", "!?\n\n", " ", " y"]),
    ],
)
def test_each_pre_tokenizer_splits_as_its_family_does(
    tmp_path: Path, pre: str, expected: list[str]
) -> None:
    tokenizer = build_gguf_tokenizer(bpe_file(tmp_path / "x.gguf", pre))
    assert words(tokenizer, "I'm 1234 x!?\n\n  y") == expected


@pytest.mark.parametrize("pre", [None, "default", "some-new-one"])
def test_an_unknown_pre_tokenizer_is_refused_rather_than_guessed(
    tmp_path: Path, pre: str | None
) -> None:
    with pytest.raises(ConfigError, match="not supported; supported: smollm, gpt-2"):
        build_gguf_tokenizer(bpe_file(tmp_path / "x.gguf", pre))


def test_special_tokens_are_found_in_text_and_only_control_ones_are_skipped(tmp_path: Path) -> None:
    tokenizer = build_gguf_tokenizer(bpe_file(tmp_path / "x.gguf", "gpt-2"))
    ids = tokenizer.encode("hi<s><tool>hi").ids
    assert ids == [256, 257, 258, 256]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hi<tool>hi"


@pytest.mark.parametrize(
    ("pre", "add_bos", "expected"),
    [
        ("gpt-2", None, [256]),
        ("gpt-2", True, [257, 256]),
        ("llama-bpe", None, [257, 256]),
        ("llama-bpe", False, [256]),
    ],
)
def test_the_begin_token_is_added_where_the_file_or_its_family_says_so(
    tmp_path: Path, pre: str, add_bos: bool | None, expected: list[int]
) -> None:
    tokenizer = build_gguf_tokenizer(bpe_file(tmp_path / "x.gguf", pre, add_bos=add_bos))
    assert tokenizer.encode("hi").ids == expected
    assert tokenizer.encode("hi", add_special_tokens=False).ids == [256]


def test_merges_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf_writer(path)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b"])
    writer.add_token_merges(["a b"])
    finish(writer)
    with pytest.raises(ConfigError, match="merge 'a b'"):
        build_gguf_tokenizer(path)


def test_other_kinds_of_tokenizers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf_writer(path)
    writer.add_tokenizer_model("bert")
    finish(writer)
    with pytest.raises(ConfigError, match="'bert' is not supported"):
        build_gguf_tokenizer(path)


def sentencepiece_file(path: Path, pieces: Sequence[str]) -> Path:
    """A vocabulary of SentencePiece's kind; earlier pieces score better."""
    tokens = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, *pieces]
    writer = gguf_writer(path)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(pieces))])
    writer.add_token_types([UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    finish(writer)
    return path


def merged_by_definition(text: str, pieces: Sequence[str]) -> list[str]:
    """SentencePiece's BPE word for word: merge the best scored neighbours until none are left."""
    scores = {piece: -i for i, piece in enumerate(pieces)}
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        unions = [
            (-scores[a + b], at)
            for at, (a, b) in enumerate(zip(symbols, symbols[1:], strict=False))
            if a + b in scores
        ]
        if not unions:
            break
        _, at = min(unions)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return [
        token
        for symbol in symbols
        for token in (
            [symbol] if symbol in scores else [f"<0x{byte:02X}>" for byte in symbol.encode()]
        )
    ]


# Unions of two letters at most overlap in ways in which any order of equal unions is the same.
PIECES = st.lists(
    st.text("▁abc", min_size=2, max_size=4).filter(lambda piece: len(set(piece)) == len(piece)),
    unique=True,
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(pieces=PIECES, texts=st.lists(st.text("abc é😀", max_size=12), max_size=5))
def test_scores_merge_as_sentencepiece_defines_it(pieces: list[str], texts: list[str]) -> None:
    vocabulary = [*pieces, "▁", "a", "b", "c"]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = build_gguf_tokenizer(sentencepiece_file(Path(folder) / "x.gguf", vocabulary))
    for text in texts:
        tokens = tokenizer.encode(text, add_special_tokens=False).tokens
        assert tokens == merged_by_definition(text, vocabulary)


def test_sentencepiece_files_add_a_begin_token_and_a_leading_space(tmp_path: Path) -> None:
    tokenizer = build_gguf_tokenizer(
        sentencepiece_file(tmp_path / "x.gguf", ["▁hi", "hi", "▁h", "▁", "h", "i"])
    )
    encoded = tokenizer.encode("hi hi</s>hi")
    assert encoded.tokens == ["<s>", "▁hi", "▁hi", "</s>", "▁hi"]
    assert tokenizer.decode(tokenizer.encode("hi  é").ids) == "hi  é"
