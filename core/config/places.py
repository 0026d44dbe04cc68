"""Where things are kept: what a setting says, else where the environment puts the user's files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from core.config.door import BatchConfig, TenantsConfig
from core.config.house import ClusterConfig
from core.config.reading import ENV_PREFIX
from core.config.worker import ModelConfig


def model_cache_dir(config: ModelConfig, environ: Mapping[str, str] | None = None) -> Path:
    """Where fetched models are kept: the setting, else under the user's cache directory."""
    if config.cache_dir is not None:
        return Path(config.cache_dir).expanduser()
    return _cache_home(environ) / "models"


def run_dir(config: ClusterConfig, environ: Mapping[str, str] | None = None) -> Path:
    """Where runs are noted and logs kept: the setting, else under the user's cache directory."""
    if config.run_dir is not None:
        return Path(config.run_dir).expanduser()
    return _cache_home(environ) / "run"


def tenants_file(config: TenantsConfig, environ: Mapping[str, str] | None = None) -> Path:
    """Keys and usage of an embedded state: the setting, else under the user's data directory."""
    return Path(config.file) if config.file is not None else _data_home(environ) / "tenants.db"


def batch_dir(config: BatchConfig, environ: Mapping[str, str] | None = None) -> Path:
    """Files of batches: the setting, else under the user's data directory."""
    return Path(config.dir) if config.dir is not None else _data_home(environ) / "batch"


def kernel_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where compiled kernels are kept: under the user's cache directory."""
    return _cache_home(environ) / "kernels"


def kernel_isa(environ: Mapping[str, str] | None = None) -> str | None:
    """The instruction set that CPU kernels are to use (`TANDEM_CPU_ISA`: avx512, avx2 or portable);
    None: the fastest that the CPU has."""
    return (os.environ if environ is None else environ).get(f"{ENV_PREFIX}CPU_ISA") or None


def _cache_home(environ: Mapping[str, str] | None) -> Path:
    home = (os.environ if environ is None else environ).get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "tandem"


def _data_home(environ: Mapping[str, str] | None) -> Path:
    home = (os.environ if environ is None else environ).get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "tandem"
