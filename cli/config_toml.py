"""A configuration as the TOML file that would give it."""

from __future__ import annotations

import json

from core.config import Config

SECRET = frozenset({("model", "hub_token"), ("router", "admin_token")})


def to_toml(config: Config) -> str:
    """Every set value, section by section; unset ones as comments, secrets left out."""
    sections = []
    for section, entries in config.model_dump().items():
        lines = [_line(section, key, value) for key, value in entries.items()]
        sections.append("\n".join([f"[{section}]", *lines]))
    return "\n\n".join(sections) + "\n"


def _line(section: str, key: str, value: object) -> str:
    if value is None:
        return f"# {key} is unset"
    if (section, key) in SECRET:
        return f"# {key} is set, and not shown"
    # A JSON string, number or boolean is a TOML one too.
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"
