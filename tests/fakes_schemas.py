"""A hundred JSON schemas of growing difficulty, and what an answer to one must be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jsonschema

_FILE = Path(__file__).parent / "data" / "json_schemas.jsonl"


@dataclass(frozen=True)
class NamedSchema:
    """One line of the file."""

    name: str
    schema: Mapping[str, object]

    def check(self, text: str) -> None:
        """Fails unless the text is JSON that the schema allows, formats included."""
        validator = jsonschema.Draft202012Validator(
            self.schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        validator.validate(json.loads(text))

    def response_format(self) -> dict[str, object]:
        """As OpenAI's clients ask for it."""
        inner = {"name": "answer", "schema": self.schema, "strict": True}
        return {"type": "json_schema", "json_schema": inner}


def schemas() -> list[NamedSchema]:
    """All of them, the simplest first."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    return [NamedSchema(**json.loads(line)) for line in lines]
