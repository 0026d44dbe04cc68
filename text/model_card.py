"""The door to model cards: `load_card` reads one from whatever kind of source."""

from __future__ import annotations

from text.card import Dtype, ModelCard
from text.gguf_card import load_gguf_card
from text.huggingface_card import load_huggingface_card
from text.model_source import ModelSource
from text.rope_config import RopeConfig, RopeScaling

__all__ = ["Dtype", "ModelCard", "ModelSource", "RopeConfig", "RopeScaling", "load_card"]


def load_card(source: ModelSource) -> ModelCard:
    """Reads the card of a model on disk.

    Raises ConfigError that names the file and the key for what is missing, nonsense or unsupported.
    """
    if source.kind == "gguf":
        return load_gguf_card(source)
    return load_huggingface_card(source)
