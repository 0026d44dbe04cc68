"""What whole-system tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes_byte_model import write_byte_model
from fakes_solo import Solo

from text.hub import ModelSource
from text.model_card import load_card
from text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer(default_model_source: ModelSource) -> Tokenizer:
    return load_tokenizer(load_card(default_model_source))


@pytest.fixture(scope="session")
def solo(default_model_source: ModelSource) -> Solo:
    """Answers of a lone engine, which many tests compare with."""
    return Solo(load_card(default_model_source))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes: small enough for a house of workers in each test file."""
    return write_byte_model(tmp_path_factory.mktemp("byte-model"))
