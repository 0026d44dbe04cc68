"""A model of the Hugging Face hub, copied into the cache.

The library keeps what was already fetched (an interrupted download goes on where it stopped), locks
each file between processes, and gives up on a connection that is silent for 10 s.
"""

from __future__ import annotations

from pathlib import Path

from core.config import ModelConfig, model_cache_dir
from core.errors import ConfigError
from text.progress import Progress
from text.safetensors_files import safetensors_files

# What a card, a tokenizer and the weights are read from; nothing in subfolders (other formats).
_PATTERNS = ["*.safetensors", "*.json", "*.jinja"]
_SUBFOLDERS = ["*/*"]


def hub_cache_dir(config: ModelConfig) -> Path:
    """Where snapshots are kept, in the library's own layout."""
    return model_cache_dir(config) / "hub"


def fetch_snapshot(config: ModelConfig, progress: Progress, *, refresh: bool = False) -> Path:
    """The directory of the hub id `config.model`.

    A complete copy in the cache is used as it is, without asking the hub, so that all processes of
    a cluster start from the same files; `refresh` asks for a newer one. Raises ConfigError if the
    hub cannot be reached, refuses, or has no usable model there.
    """
    cached = _cached(config)
    if cached is not None and (config.offline or not refresh):
        return cached
    if config.offline:
        raise ConfigError(
            f"{config.model} is not complete in {hub_cache_dir(config)} and model.offline is set"
        )
    directory = _download(config, progress)
    if not _is_complete(directory):
        raise ConfigError(
            f"{config.model} on the hub has no config.json with *.safetensors weights"
        )
    return directory


def _cached(config: ModelConfig) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        directory = snapshot_download(
            config.model,
            revision=config.revision,
            cache_dir=hub_cache_dir(config),
            allow_patterns=_PATTERNS,
            ignore_patterns=_SUBFOLDERS,
            local_files_only=True,
        )
    except (OSError, ValueError):
        return None
    return Path(directory) if _is_complete(Path(directory)) else None


def _is_complete(directory: Path) -> bool:
    if not (directory / "config.json").is_file():
        return False
    try:
        return bool(safetensors_files(directory))
    except ConfigError:
        return False


def _download(config: ModelConfig, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    from text.hub_progress import progress_bar

    # The root of the HTTP client's errors; which client that is differs by the library's version.
    http_error = next(
        base
        for base in HfHubHTTPError.__mro__
        if issubclass(base, Exception) and base.__name__ == "HTTPError"
    )
    try:
        directory = snapshot_download(
            config.model,
            revision=config.revision,
            token=config.hub_token,
            cache_dir=hub_cache_dir(config),
            endpoint=config.hub_endpoint,
            allow_patterns=_PATTERNS,
            ignore_patterns=_SUBFOLDERS,
            tqdm_class=progress_bar(config.model, progress, timeout_s=config.download_timeout_s),
        )
    except (OSError, ValueError, http_error) as error:
        raise ConfigError(_explain(config, error)) from None
    return Path(directory)


def _explain(config: ModelConfig, error: BaseException) -> str:
    revision = f" (revision {config.revision})" if config.revision else ""
    reason = " ".join(str(error).split())
    return (
        f"cannot fetch {config.model}{revision} from the hub: {reason}. A gated model needs "
        "model.hub_token; without a network, give the path of a directory or a .gguf file"
    )
