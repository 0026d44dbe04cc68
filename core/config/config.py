"""All sections together."""

from __future__ import annotations

from core.config.door import BatchConfig, GuardConfig, RouterConfig, TenantsConfig
from core.config.house import (
    ClusterConfig,
    FaultsConfig,
    LoggingConfig,
    ObservabilityConfig,
    StateConfig,
    TlsConfig,
)
from core.config.section import Section
from core.config.worker import (
    CacheConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    TransferConfig,
    WorkerConfig,
)


class Config(Section):
    """All settings of a Tandem process."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    parallel: ParallelConfig = ParallelConfig()
    router: RouterConfig = RouterConfig()
    guard: GuardConfig = GuardConfig()
    tenants: TenantsConfig = TenantsConfig()
    batch: BatchConfig = BatchConfig()
    worker: WorkerConfig = WorkerConfig()
    kv_transfer: TransferConfig = TransferConfig()
    tls: TlsConfig = TlsConfig()
    state: StateConfig = StateConfig()
    cluster: ClusterConfig = ClusterConfig()
    logging: LoggingConfig = LoggingConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    faults: FaultsConfig = FaultsConfig()
