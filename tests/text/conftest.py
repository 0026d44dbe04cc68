"""Fixtures for the text package: the default model's card and tokenizer."""

from __future__ import annotations

import pytest

from text.model_card import ModelCard, ModelSource, load_card
from text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def default_card(default_model_source: ModelSource) -> ModelCard:
    return load_card(default_model_source)


@pytest.fixture(scope="session")
def default_tokenizer(default_card: ModelCard) -> Tokenizer:
    return load_tokenizer(default_card)
