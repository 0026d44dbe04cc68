"""The one typed, frozen configuration, and the only place that reads the environment.

Values come from, later wins: defaults here < TOML file < environment (`TANDEM_SECTION__KEY`) <
`--set section.key=value`. Unknown sections and keys are refused with the nearest known name.
"""

from core.config.config import Config
from core.config.door import BatchConfig, GuardConfig, RouterConfig, TenantsConfig
from core.config.house import (
    ClusterConfig,
    FaultsConfig,
    LoggingConfig,
    ObservabilityConfig,
    StateConfig,
    TlsConfig,
)
from core.config.of_libraries import library_setting
from core.config.places import (
    batch_dir,
    kernel_cache_dir,
    kernel_isa,
    model_cache_dir,
    run_dir,
    tenants_file,
)
from core.config.reading import ENV_PREFIX, load_config
from core.config.worker import (
    CacheConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    TransferConfig,
    WorkerConfig,
)

__all__ = [
    "BatchConfig",
    "CacheConfig",
    "ClusterConfig",
    "Config",
    "ENV_PREFIX",
    "FaultsConfig",
    "GuardConfig",
    "LoggingConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "RouterConfig",
    "SchedulerConfig",
    "StateConfig",
    "TenantsConfig",
    "TlsConfig",
    "TransferConfig",
    "WorkerConfig",
    "batch_dir",
    "kernel_cache_dir",
    "kernel_isa",
    "library_setting",
    "load_config",
    "model_cache_dir",
    "run_dir",
    "tenants_file",
]
