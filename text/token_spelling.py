"""How a vocabulary spells bytes: from a token's string to the bytes it stands for.

byte_level     every byte is one printable character (GPT-2's table); Llama 3, SmolLM, Qwen
sentencepiece  plain text with U+2581 for a space, and `<0xE2>` tokens for single bytes; Llama 2
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Literal

from core.errors import ConfigError

_SPACE = "\u2581"
_SENTENCEPIECE_STEPS = {"Replace", "ByteFallback", "Fuse", "Strip"}


@dataclass(frozen=True, slots=True)
class TokenSpelling:
    """`strips_leading_space`: one space at the start of a decoded text is the encoder's own."""

    kind: Literal["byte_level", "sentencepiece"]
    strips_leading_space: bool = False

    def to_bytes(self, token: str) -> bytes:
        """The bytes that an ordinary token stands for; single tokens may be invalid UTF-8."""
        if self.kind == "byte_level":
            table = _byte_level_table()
            try:
                return bytes([table[character] for character in token])
            except KeyError:
                # No trained token has such characters; one that somebody put in is plain text.
                return token.encode()
        return _byte_tokens().get(token) or token.replace(_SPACE, " ").encode()


def spelling_of(where: str, decoder: str | None) -> TokenSpelling:
    """Reads the spelling from a tokenizer's decoder, given as JSON.

    Raises ConfigError for decoders of other families.
    """
    steps = _steps(json.loads(decoder) if decoder else {"type": "none"})
    names = {str(step.get("type")) for step in steps}
    if names == {"ByteLevel"}:
        return TokenSpelling("byte_level")
    if "Replace" in names and names <= _SENTENCEPIECE_STEPS:
        return TokenSpelling("sentencepiece", strips_leading_space="Strip" in names)
    raise ConfigError(
        f"{where}: decoder {'+'.join(sorted(names))} is not supported; supported: ByteLevel, and "
        "SentencePiece's Replace+ByteFallback+Fuse+Strip"
    )


def _steps(decoder: dict[str, object]) -> list[dict[str, object]]:
    if decoder.get("type") != "Sequence":
        return [decoder]
    steps = decoder.get("decoders")
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


@functools.cache
def _byte_level_table() -> dict[str, int]:
    """Character -> byte. Printable Latin-1 stands for itself, the others for 256, 257, ..."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    codes = [*itself, *range(256, 256 + len(others))]
    return {chr(code): byte for code, byte in zip(codes, [*itself, *others], strict=True)}


@functools.cache
def _byte_tokens() -> dict[str, bytes]:
    return {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
