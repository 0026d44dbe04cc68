"""Finding the `tandem serve` that a command is about."""

from __future__ import annotations

from cluster.run_record import Run, live_runs
from core.config import Config, run_dir
from core.errors import ConfigError


def the_run(config: Config, run_id: str | None = None) -> Run:
    """The run called `run_id`, else the newest. Raises ConfigError if there is none."""
    runs = [
        run for run in live_runs(run_dir(config.cluster)) if run_id is None or run.run_id == run_id
    ]
    if not runs:
        what = "nothing is served here" if run_id is None else f"no run is called {run_id}"
        raise ConfigError(f"{what}; `tandem serve` starts something")
    return runs[-1]


def base_url(config: Config, url: str | None) -> str:
    """The given URL without /v1, else the newest run's. Raises ConfigError if that isn't ready."""
    if url is not None:
        return url.rstrip("/").removesuffix("/v1")
    run = the_run(config)
    if not run.http_address:
        raise ConfigError(f"{run.run_id} is not ready yet; see `tandem status`")
    return f"http://{run.http_address}"
