"""Settings from file, environment and `--set` become a `Config`, or an error that names one."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from core.config.config import Config
from core.config.section import Section
from core.errors import ConfigError

ENV_PREFIX = "TANDEM_"


def load_config(
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Builds the configuration of this process.

    `overrides` are `section.key=value` strings; `environ` defaults to the process's environment.
    Raises ConfigError that names the offending setting and its source.
    """
    values: dict[str, dict[str, Any]] = {}
    if file is not None:
        _merge(values, _read_file(file), source=str(file))
    _merge(values, _read_environ(os.environ if environ is None else environ), source="environment")
    _merge(values, _read_overrides(overrides), source="--set")
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def _read_file(file: Path) -> dict[str, dict[str, Any]]:
    try:
        data = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {file}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    for name, section in data.items():
        if not isinstance(section, dict):
            raise ConfigError(f"{file}: '{name}' must be a section, as in [{name}]")
    return data


def _read_environ(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    values: dict[str, dict[str, Any]] = {}
    for name, text in environ.items():
        if name.startswith(ENV_PREFIX) and "__" in name:
            section, key = name[len(ENV_PREFIX) :].lower().split("__", 1)
            values.setdefault(section, {})[key] = _parse(section, key, text)
    return values


def _read_overrides(overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    values: dict[str, dict[str, Any]] = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if not equals or not dot:
            raise ConfigError(f"--set {override!r}: expected section.key=value")
        values.setdefault(section, {})[key] = _parse(section, key, text)
    return values


def _parse(section: str, key: str, text: str) -> Any:
    """A TOML/JSON literal where it is one, a bare string otherwise; 'none' unsets.

    A setting that is text keeps what was written: a revision may look like a number (`12e3456`),
    and `none` may be one of its values.
    """
    if text.lower() in ("none", "null") and text not in _choices(section, key):
        return None
    if _is_text(section, key):
        return text
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return text


def _is_text(section: str, key: str) -> bool:
    annotation = _annotation(section, key)
    return annotation is str or str in get_args(annotation)


def _choices(section: str, key: str) -> tuple[Any, ...]:
    annotation = _annotation(section, key)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _annotation(section: str, key: str) -> Any:
    if section not in Config.model_fields:
        return None
    field = _section_type(section).model_fields.get(key)
    return None if field is None else field.annotation


def _merge(
    into: dict[str, dict[str, Any]], values: Mapping[str, Mapping[str, Any]], *, source: str
) -> None:
    for section, entries in values.items():
        if section not in Config.model_fields:
            raise ConfigError(_unknown(section, Config.model_fields, what="section", source=source))
        known = _section_type(section).model_fields
        for key, value in entries.items():
            if key not in known:
                names = [f"{section}.{k}" for k in known]
                raise ConfigError(
                    _unknown(f"{section}.{key}", names, what="setting", source=source)
                )
            into.setdefault(section, {})[key] = value


def _section_type(section: str) -> type[Section]:
    annotation = Config.model_fields[section].annotation
    assert isinstance(annotation, type) and issubclass(annotation, Section)
    return annotation


def _unknown(name: str, known: Mapping[str, Any] | Sequence[str], *, what: str, source: str) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}"
    return f"unknown {what} '{name}' ({source}){hint}"


def _explain(error: ValidationError) -> str:
    lines = [
        f"{'.'.join(str(p) for p in item['loc'])} = {item['input']!r}: {item['msg']}"
        for item in error.errors()
    ]
    return "; ".join(lines)
