"""All families, and how one is found."""

from __future__ import annotations

from core.errors import ConfigError
from text.families.family import Family, GGUFFormat
from text.families.gemma import GEMMA, GEMMA2, GEMMA3
from text.families.llama import LLAMA, MISTRAL
from text.families.phi import PHI
from text.families.phi3 import PHI3
from text.families.qwen import QWEN2, QWEN3

FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3, PHI, PHI3)


def family_named(name: str) -> Family:
    """The family of a card's `architecture`."""
    return next(family for family in FAMILIES if family.name == name)


def family_of_class(name: str, where: str) -> Family:
    """By the class that config.json names. Raises ConfigError if there is none."""
    for family in FAMILIES:
        if name in family.classes:
            return family
    supported = ", ".join(c for family in FAMILIES for c in family.classes)
    raise ConfigError(f"{where}: architecture {name} is not supported; supported: {supported}")


def family_of_gguf(architecture: str, where: str) -> tuple[Family, GGUFFormat]:
    """By a GGUF file's `general.architecture`. Raises ConfigError if there is none."""
    formats = [(family, family.gguf) for family in FAMILIES if family.gguf is not None]
    for family, gguf in formats:
        if gguf.architecture == architecture:
            return family, gguf
    supported = ", ".join(gguf.architecture for _, gguf in formats)
    raise ConfigError(
        f"{where}: architecture {architecture!r} is not supported; supported: {supported}"
    )
