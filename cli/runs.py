"""Finding the `tandem serve` that a command is about."""

from __future__ import annotations

import ssl
from pathlib import Path

from cluster.run_record import Run, live_runs
from core.config import Config, run_dir
from core.errors import ConfigError

_END = "-----END CERTIFICATE-----"


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
    return run.http_url


def trust(config: Config, url: str | None) -> ssl.SSLContext | bool:
    """What to verify a server with: the newest run shows the certificate that its record names,
    whoever signed it; any other server one that the system trusts."""
    return True if url is not None else trust_run(the_run(config))


def trust_run(run: Run) -> ssl.SSLContext | bool:
    """Trusts the run's own certificate, for whatever name: its address comes from the record."""
    if not run.http_certificate:
        return True
    try:
        chain = Path(run.http_certificate).read_text()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=chain.partition(_END)[0] + _END)
    except OSError as error:
        raise ConfigError(f"cannot read {run.http_certificate}: {error}") from None
    return context
