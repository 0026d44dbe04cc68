"""The default model's tokenizer, and those of Hugging Face directories."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

import pytest
import tokenizers
from fakes_tokenizer_files import save_sentencepiece, sentencepiece_card
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from core.errors import BadRequestError, ConfigError
from text.model_card import ModelCard, ModelSource
from text.tokenizer import Tokenizer, load_tokenizer

# Without digits: transformers loses this model's digit rule when it reads GGUF.
TEXTS = [
    "Hello, world!",
    "  leading and   inner spaces \n\n\ttabs\r\n",
    "don't we'll I'M they'RE",
    "naïve café ÅÄÖ ß ﬁ",
    "日本語のテキスト、中文。한국어",
    "Привет мир! مرحبا بالعالم",
    "emoji 😀 👨‍👩‍👧‍👦 🏳️‍🌈 e\u0301",
    "def f(x):\n    return {'a': [x, -x]}  # comment",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <|not_special|> <file_sep>",
    "\x00\x07\u200b\ufeff\U0010ffff",
]

# Characters whose every byte has a token: this model's vocabulary lacks some that its training
# texts never held (six control characters, the planes that Unicode leaves empty).
SPELLABLE = st.characters(
    max_codepoint=0x3FFFF,
    exclude_categories=["Cs"],
    exclude_characters="\x04\x06\x13\x14\x16\x1d",
)


class Reference(Protocol):
    """What these tests use of transformers' tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str: ...

    def save_pretrained(self, directory: Path) -> object: ...


@pytest.fixture(scope="module")
def reference(default_model_source: ModelSource) -> Iterator[Reference]:
    """transformers' tokenizer of the same file (some seconds)."""
    from transformers import AutoTokenizer

    path = default_model_source.path
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    yield cast(Reference, tokenizer)


def test_ids_equal_transformers_where_it_keeps_the_models_rules(
    default_tokenizer: Tokenizer, reference: Reference
) -> None:
    for text in TEXTS:
        ids = default_tokenizer.encode(text)
        assert ids == reference.encode(text, add_special_tokens=False), text
        for skip in (True, False):
            expected = reference.decode(ids, skip_special_tokens=skip)
            assert default_tokenizer.decode(ids, skip_special_tokens=skip) == expected


def test_every_digit_is_a_token_of_its_own(default_tokenizer: Tokenizer) -> None:
    digits = [default_tokenizer.token_id(digit) for digit in "0123456789"]
    assert default_tokenizer.encode("0123456789") == digits
    for text in ("in 2024, 31.12.", "x1y22", "١٢ ½ ²"):
        for token in default_tokenizer.encode(text):
            assert sum(c.isdigit() for c in default_tokenizer.token_text(token)) <= 1


def test_a_directory_saved_by_transformers_gives_the_same_ids(
    default_card: ModelCard, reference: Reference, tmp_path: Path
) -> None:
    reference.save_pretrained(tmp_path)
    source = ModelSource("huggingface", tmp_path, "saved")
    ours = load_tokenizer(dataclasses.replace(default_card, source=source))
    for text in [*TEXTS, "and 1234 digits"]:
        ids = ours.encode(text)
        assert ids == reference.encode(text, add_special_tokens=True)
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@settings(max_examples=200, deadline=None)
@given(text=st.text(SPELLABLE, max_size=60))
def test_text_survives_the_round_trip(default_tokenizer: Tokenizer, text: str) -> None:
    assert default_tokenizer.decode(default_tokenizer.encode(text), False) == text


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=30), skip=st.booleans())
def test_decoding_equals_the_librarys_even_for_broken_utf8(
    default_tokenizer: Tokenizer, backend: tokenizers.Tokenizer, ids: list[int], skip: bool
) -> None:
    expected = backend.decode(ids, skip_special_tokens=skip)
    assert default_tokenizer.decode(ids, skip_special_tokens=skip) == expected


@pytest.fixture(scope="module")
def backend(default_model_source: ModelSource) -> tokenizers.Tokenizer:
    from text.gguf_tokenizer import build_gguf_tokenizer

    return build_gguf_tokenizer(default_model_source.path)


def test_template_marks_are_single_special_tokens(default_tokenizer: Tokenizer) -> None:
    assert default_tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]
    assert default_tokenizer.special_token_ids == frozenset(range(17))
    assert default_tokenizer.decode([1, 2]) == ""
    assert default_tokenizer.decode([1, 2], skip_special_tokens=False) == "<|im_start|><|im_end|>"


def test_token_bytes_join_to_the_text(default_tokenizer: Tokenizer) -> None:
    text = "日本 😀 né"
    ids = default_tokenizer.encode(text)
    assert b"".join(default_tokenizer.token_bytes(i) for i in ids) == text.encode()
    partial = next(i for i in ids if "\ufffd" in default_tokenizer.token_text(i))
    assert not default_tokenizer.token_bytes(partial).isascii()


def test_ids_outside_the_vocabulary_decode_to_nothing(default_tokenizer: Tokenizer) -> None:
    for token_id in (10**6, -1, 2**32, 2**70):
        assert default_tokenizer.token_bytes(token_id) == b""
        assert default_tokenizer.token_string(token_id) == ""
    assert default_tokenizer.decode([10**6, *default_tokenizer.encode("a")]) == "a"


def test_bytes_without_a_token_are_left_out_as_transformers_does(
    default_tokenizer: Tokenizer, reference: Reference
) -> None:
    text = "a\x04b \U00040000"
    ids = default_tokenizer.encode(text)
    assert ids == reference.encode(text, add_special_tokens=False)
    assert default_tokenizer.decode(ids).startswith("ab ")


def test_unpaired_surrogates_are_the_clients_fault(default_tokenizer: Tokenizer) -> None:
    with pytest.raises(BadRequestError, match="surrogates"):
        default_tokenizer.encode("a\ud800b")


def test_tokens_without_weights_are_refused(default_card: ModelCard) -> None:
    small = load_tokenizer(dataclasses.replace(default_card, vocab_size=49151))
    assert small.encode("fine") == load_tokenizer(default_card).encode("fine")
    with pytest.raises(BadRequestError, match="token 49151"):
        small.encode(small.decode([49151]))


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_texts_survive_and_decode_as_the_library_does(
    tmp_path: Path, prefix: bool
) -> None:
    ours = load_tokenizer(save_sentencepiece(tmp_path, prefix=prefix))
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("hi a", " hi  hi", "é😀 hi", ""):
        ids = ours.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == text
        assert library.decode(ids) == text
    assert ours.encode("hi")[0] == 1, "the begin token belongs to a plain text"


def test_saved_truncation_and_padding_are_switched_off(tmp_path: Path) -> None:
    ours = load_tokenizer(save_sentencepiece(tmp_path, prefix=False))
    assert len(ours.encode("abababababab")) == 13
    assert len(ours.encode("a")) == 2


def test_missing_broken_and_foreign_tokenizers_are_clear_errors(tmp_path: Path) -> None:
    card = sentencepiece_card(tmp_path, 64)
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        load_tokenizer(card)
    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="cannot read"):
        load_tokenizer(card)
    foreign = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    foreign.pre_tokenizer = pre_tokenizers.Whitespace()
    foreign.decoder = decoders.WordPiece()
    path.write_text(json.dumps(json.loads(foreign.to_str())))
    with pytest.raises(ConfigError, match="WordPiece is not supported"):
        load_tokenizer(card)
