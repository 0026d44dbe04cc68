"""Text as the guard compares it: what looks alike, or is invisible, makes no difference.

    original     "Ｉgn\\u200bоre\\u00ad  ALL"      full width, zero width, Cyrillic o, soft hyphen
    normalised   "ignore all"
    origins       0123 5...                       where each character came from

Character by character: compatibility decomposition (NFKD, which holds all that NFKC unifies), case
folding, no diacritics, no invisible characters, look-alikes as the ASCII letter they pass for,
space as one blank. So the result depends neither on how a text is cut nor on how it was composed.
The ASCII hidden in tag characters (U+E0020..7E) becomes visible.
"""

from __future__ import annotations

import codecs
import unicodedata

_LOOK_ALIKES = str.maketrans(
    # Cyrillic, Greek, Latin of other alphabets: those that common fonts draw like ASCII.
    "аеорсухіјѕһԁԛԝѵӏкмтвнпαοριυνκτχγεωѡʏıɡɑɩʟɪɴʀᴀᴇᴏᴜᴛᴍᴋǀ∣",
    "aeopcyxijshdqwvlkmtbhnaopiuvktxyewwyigailinraeoutmkll",
)
_PUNCTUATION = str.maketrans(
    "‘’‚‛′`´ʼʹ“”„‟″‐‑‒–—―−⁃﹣",
    "'''''''''\"\"\"\"\"---------",
)
_TAGS = range(0xE0020, 0xE007F)
_INVISIBLE = frozenset({0x115F, 0x1160, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10)})
"""Fillers and variation selectors; most other invisible characters are of the category Cf."""
_DIACRITICS = (
    range(0x0300, 0x0370),
    range(0x1AB0, 0x1B00),
    range(0x1DC0, 0x1E00),
    range(0x20D0, 0x2100),
    range(0xFE20, 0xFE30),
    range(0xE0100, 0xE01F0),
)
_BLANK = 0x2800
"""Braille without a dot."""

_UNSPACED = (
    range(0x0E00, 0x0F00),  # Thai, Lao
    range(0x1000, 0x1200),  # Burmese, Georgian, Jamo
    range(0x1780, 0x1800),  # Khmer
    range(0x2E80, 0xD7B0),  # Chinese, Japanese, Korean, Yi
    range(0xF900, 0xFB00),
    range(0x1B000, 0x1B300),
    range(0x20000, 0x40000),
)


class _Folds(dict[int, str]):
    """Each character's normal form, found when it is first met."""

    def __missing__(self, code: int) -> str:
        folded = self[code] = _fold(chr(code))
        return folded


def _fold(character: str) -> str:
    if ord(character) in _TAGS:
        return _fold(chr(ord(character) - 0xE0000))
    text = unicodedata.normalize("NFKD", character).casefold()
    text = unicodedata.normalize("NFKD", text).translate(_LOOK_ALIKES).translate(_PUNCTUATION)
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    code = ord(character)
    if character.isspace() or code == _BLANK:
        return " "
    if code in _INVISIBLE or any(code in block for block in _DIACRITICS):
        return ""
    return "" if unicodedata.category(character) in ("Cf", "Cc") else character


FOLDS = _Folds()
"""Character code -> its normal form: none, one or several characters. Blanks not yet joined."""


def _fold_run(error: UnicodeError) -> tuple[bytes, int]:
    """Normal form of a run of characters that are not ASCII."""
    assert isinstance(error, UnicodeEncodeError)
    run = error.object[error.start : error.end]
    return run.translate(FOLDS).encode("utf-8", "surrogatepass"), error.end


_FOLDING = "tandem-guard-fold"
# The only way to walk over long stretches of ASCII at the speed of C, and stop in between.
codecs.register_error(_FOLDING, _fold_run)

_ASCII = bytes(ord(FOLDS[code] or " ") if code < 128 else code for code in range(256))
_ASCII_DROPPED = bytes(code for code in range(128) if not FOLDS[code])


def normalized(text: str) -> str:
    """The normal form of a text; 3 ns a character of ASCII, 40 ns of others."""
    data = text.encode("ascii", _FOLDING).translate(_ASCII, _ASCII_DROPPED)
    if b"  " in data:
        begin, end = b" " * data.startswith(b" "), b" " * data.endswith(b" ")
        data = begin + b" ".join(data.split()) + end if data.strip() else b" "
    return data.decode("utf-8", "surrogatepass")


def origins(text: str) -> list[int]:
    """For each character of `normalized(text)`, the position in `text` that it came from."""
    found: list[int] = []
    after_blank = False
    for position, character in enumerate(text):
        for folded in FOLDS[ord(character)]:
            if not (folded == " " and after_blank):
                found.append(position)
            after_blank = folded == " "
    return found


def is_word(character: str) -> bool:
    """Whether a term that ends beside this normalised character ends inside a word.

    Scripts that are written without spaces have no such ends.
    """
    if character.isascii():
        return character.isalnum() or character == "_"
    code = ord(character)
    return character.isalnum() and not any(code in script for script in _UNSPACED)
