"""The default model's texts, for a router that needs no weights."""

from __future__ import annotations

import pytest
from fakes_house import Texts

from text.chat_template import ChatTemplate
from text.model_card import ModelSource, load_card
from text.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def texts(default_model_source: ModelSource) -> Texts:
    card = load_card(default_model_source)
    template = ChatTemplate(card.chat_template, card.bos_token, card.eos_token)
    return Texts(card, load_tokenizer(card), template)
