"""Fixtures that several packages need: real servers, started once for a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import fakes_process
import hypothesis
import pytest
import redis_server

if TYPE_CHECKING:
    from cluster.ray_session import RaySession

from core.config import ModelConfig
from text.hub import ModelSource, resolve

# Read when gRPC is first used: its fork handlers are for programs that go on using it in a child
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")


# A machine that stalls makes an example slow, and tells nothing of what is tested.
UNHURRIED: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("unhurried", **UNHURRIED)
hypothesis.settings.register_profile("steady", derandomize=True, **UNHURRIED)


def pytest_configure(config: pytest.Config) -> None:
    """Whether a change is good must not hang on what is drawn; the slow suite looks further."""
    is_quick = "not slow" in config.getoption("markexpr")
    hypothesis.settings.load_profile("steady" if is_quick else "unhurried")


@pytest.fixture(scope="session")
def redis_binary() -> redis_server.Binary:
    """A redis-server that runs here, fetched if need be."""
    return redis_server.locate()


@pytest.fixture(scope="session")
def redis_url(redis_binary: redis_server.Binary) -> Iterator[str]:
    """A real Redis, shared by the session: use a namespace of your own."""
    with redis_server.running(redis_binary) as server:
        yield server.url


@pytest.fixture(scope="session")
def ray_session() -> Iterator[RaySession]:
    """A private Ray cluster, shared by the session."""
    from cluster.ray_session import new_temp_dir, open_session
    from core.config import ClusterConfig

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", fakes_process.IMPORT_PATH)  # actors import stand-ins
        config = ClusterConfig()
        session = open_session(config, num_cpus=8, temp_dir=new_temp_dir(config))
    try:
        yield session
    finally:
        session.close()


@pytest.fixture(scope="session")
def default_model_source() -> ModelSource:
    """The default model on this machine's ordinary cache, fetched by pip if need be."""
    return resolve(ModelConfig())
