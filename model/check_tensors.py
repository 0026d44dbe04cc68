"""Whether a checkpoint holds what its model card promises."""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import ConfigError
from text.card import ModelCard
from text.decoder_tensors import Shape, decoder_tensors
from text.families.registry import family_named

_NUM_NAMED_IN_ERRORS = 5


def check_tensors(card: ModelCard, found: Mapping[str, Shape]) -> None:
    """Raises ConfigError that names tensors missing, unexpected, or of another shape."""
    expected = decoder_tensors(card)
    wrong = [
        f"{name} is {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    unexpected = [n for n in found if n not in expected and not _harmless(card, n)]
    problems = [
        _named("lacks", [name for name in expected if name not in found]),
        _named("holds unexpected", unexpected),
        _named("disagrees with its configuration:", wrong),
    ]
    if any(problems):
        text = "; ".join(p for p in problems if p)
        raise ConfigError(f"the checkpoint of {card.name} ({card.source.path}) {text}")


def _harmless(card: ModelCard, name: str) -> bool:
    """A tied head stored once more, and tables that old checkpoints carry along."""
    head = f"{family_named(card.architecture).head}.weight"
    return (name == head and card.tie_word_embeddings) or name.endswith("rotary_emb.inv_freq")


def _named(verb: str, names: list[str]) -> str:
    if not names:
        return ""
    more = len(names) - _NUM_NAMED_IN_ERRORS
    ending = f" and {more} more" if more > 0 else ""
    return f"{verb} {', '.join(names[:_NUM_NAMED_IN_ERRORS])}{ending}"
