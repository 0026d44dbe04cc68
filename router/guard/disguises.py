"""What a text says to who decodes it: the same words encoded, mirrored, or in letters apart.

Each disguise has a cheap sign; a text without signs costs little. What is decoded is never longer
than the text itself, and is not decoded again.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import string
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import unquote

_MIN_ENCODED = 24
"""Characters of base64 or hex below which there is no room for an instruction."""
_ENCODED = re.compile(rf"[A-Za-z0-9+/_-]{{{_MIN_ENCODED},}}")
_LONG_RUN = b"x" * _MIN_ENCODED
_HEX = re.compile(rf"(?:[0-9A-Fa-f]{{2}}[ :]?){{{_MIN_ENCODED // 2},}}")
_BETWEEN = re.compile(r"[\W_]+")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})")
_ESCAPES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("%", unquote),
    ("&#", html.unescape),
    ("\\", lambda text: _ESCAPE.sub(lambda m: chr(int(m[1] or m[2], 16)), text)),
)
_HEX_HEAD = 500
"""Characters in which hex with blanks is looked for: it would cost too much everywhere."""
_LEET = bytes.maketrans(b"013457@$!", b"oieastasi")


def _marking(characters: str) -> bytes:
    """A table by which these become x, and others blanks: finds runs far faster than a regex."""
    return bytes(ord("x" if chr(code) in characters else " ") for code in range(256))


_BASE64 = _marking(string.ascii_letters + string.digits + "+/")
_HEX_DIGITS = _marking(string.hexdigits)

MIRROR_WORDS = ("ignore", "disregard", "forget", "override", "instructions", "prompt", "previous")
"""Words of which one is in nearly every attack: in a mirror, they are a sign of one."""
_GAPS = " .-_*|/,"
APART = "apart"
"""The disguise of letters with something between them."""


def signs() -> dict[str, str]:
    """Normalised strings that betray a disguise of the whole text -> that disguise."""
    found: dict[str, str] = {}
    for word in MIRROR_WORDS:
        found[word[::-1]] = "mirrored"
        found[codecs.encode(word, "rot13")] = "rot13"
        for gap in _GAPS:
            found[gap.join(word)] = APART
    return found


WHOLE_TEXT: Mapping[str, Callable[[str], str]] = {
    "mirrored": lambda text: text[::-1],
    "rot13": lambda text: codecs.encode(text, "rot13"),
}
"""How a normalised text that shows a sign is read."""


def squeezed(text: str) -> str:
    """A normalised text without anything between its letters and digits."""
    return _BETWEEN.sub("", text)


def deleeted(text: str) -> str | None:
    """Digits and signs of a normalised text as the letters they pass for; None without any."""
    data = text.encode("utf-8", "surrogatepass")
    plain = data.translate(_LEET)
    return None if plain == data else plain.decode("utf-8", "surrogatepass")


def decoded(text: str) -> Iterator[str]:
    """What parts of an original text hold encoded."""
    data = text.encode("ascii", "replace")
    if _LONG_RUN in data.translate(_BASE64):
        for match in _ENCODED.finditer(text):
            yield from _from_base64(match[0])
    if _LONG_RUN in data.translate(_HEX_DIGITS) or _HEX.search(text[:_HEX_HEAD]):
        yield from _from_hex(text)
    for sign, decode in _ESCAPES:
        if sign in text and (plain := decode(text)) != text:
            yield plain


def _from_base64(run: str) -> Iterator[str]:
    standard = run.replace("-", "+").replace("_", "/")
    try:
        data = base64.b64decode(standard[: len(standard) // 4 * 4])
    except binascii.Error:
        return
    yield from _readable(data)


def _from_hex(text: str) -> Iterator[str]:
    for match in _HEX.finditer(text):
        digits = re.sub("[ :]", "", match[0])
        yield from _readable(bytes.fromhex(digits[: len(digits) // 2 * 2]))


def _readable(data: bytes) -> Iterator[str]:
    """The bytes as text, if they are one: random ones hardly ever are."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    if sum(c.isprintable() or c.isspace() for c in text) == len(text):
        yield text
