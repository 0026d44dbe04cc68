"""Texts from a file (one text, or a prompt on each line of JSON), or from Python itself."""

from __future__ import annotations

import json
from pathlib import Path

from core.errors import ConfigError


def read_texts(file: Path) -> list[str]:
    """The whole file as one text; of a `.jsonl` file, each line's `text`, `prompt` or `messages`.

    Raises ConfigError that names the file and the line.
    """
    try:
        content = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8: {error}") from None
    if file.suffix != ".jsonl":
        return [content]
    lines = enumerate(content.splitlines(), start=1)
    return [_text(f"{file}:{number}", line) for number, line in lines if line.strip()]


def pydoc_text() -> str:
    """English that every Python has: the language reference, as `help()` shows it.

    About 115,000 tokens, a little different in each version of Python.
    """
    from pydoc_data.topics import topics

    return "\n".join(topics.values())


def _text(where: str, line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: no JSON: {error}") from None
    if isinstance(entry, dict):
        messages = entry.get("messages")
        if isinstance(messages, list):
            contents = [m.get("content") if isinstance(m, dict) else None for m in messages]
            texts = [content for content in contents if isinstance(content, str)]
            if texts and len(texts) == len(contents):
                return "\n".join(texts)
        for key in ("text", "prompt"):
            if isinstance(entry.get(key), str):
                return str(entry[key])
    raise ConfigError(f"{where}: expected an object with a text, a prompt or messages")
