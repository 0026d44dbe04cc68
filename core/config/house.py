"""What all processes of a cluster have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from core.config.section import PositiveFloat, PositiveInt, Section, absolute
from core.faults import parse_faults


class TlsConfig(Section):
    """Mutual TLS between router, workers and operators' commands: whoever has no certificate of
    this authority is refused, and KV travels encrypted. `tandem certificates create` makes files.
    All processes need them; files that are replaced are read again."""

    ca: str | None = None
    """Certificate (PEM) of the authority that signs for this cluster and for nothing else. ca,
    certificate and key are set together or not at all."""
    certificate: str | None = None
    """This process's certificate chain (PEM), for serving and for calling."""
    key: str | None = None
    """Private key (PEM, not encrypted) of tls.certificate."""
    server_name: str = "tandem"
    """The DNS name that certificates are for. Workers move, so it stands for all addresses."""

    _files = field_validator("ca", "certificate", "key")(absolute)

    @model_validator(mode="after")
    def _all_files_or_none(self) -> TlsConfig:
        files = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        missing = [name for name, file in files.items() if file is None]
        if 0 < len(missing) < len(files):
            raise ValueError(f"ca, certificate and key belong together; missing: {missing}")
        return self


class StateConfig(Section):
    """Where the cluster's shared state lives."""

    backend: Literal["memory", "redis"] = "memory"
    """memory: embedded, shared through Ray. redis: also for processes started by hand."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    """Redis server, for the redis backend."""
    namespace: str = "tandem"
    """Prefix of every key, so that clusters can share a server."""
    timeout_s: PositiveFloat = 2.0
    """Deadline of one call to the store."""


class ClusterConfig(Section):
    """What `tandem serve` starts."""

    num_prefill_workers: Annotated[int, Field(ge=0)] = 1
    """Prefill workers."""
    num_decode_workers: PositiveInt = 1
    """Decode workers."""
    ray_address: str | None = None
    """An existing Ray cluster to join; unset: a private one on this machine."""
    start_timeout_s: PositiveFloat = 300.0
    """Deadline from launch to ready, downloads apart."""
    stop_timeout_s: PositiveFloat = 8.0
    """Grace for a clean stop before processes are killed."""
    max_restarts: Annotated[int, Field(ge=-1)] = -1
    """Restarts of one worker; -1 is without limit."""
    run_dir: str | None = None
    """Where `tandem serve` notes what runs and keeps logs; unset: ~/.cache/tandem/run."""


class LoggingConfig(Section):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level written."""


class ObservabilityConfig(Section):
    """What a running house tells about itself. docs/OBSERVABILITY.md says what is in it."""

    log_format: Literal["text", "json"] = "text"
    """json: one object a line, with the ids of the request that it is about."""
    log_requests: bool = False
    """A line for every request that ends, on the router and on the workers; never its text. Those
    that fail have one always."""
    otlp_endpoint: str | None = None
    """Where OpenTelemetry spans go, as http://collector:4317; unset: none are made. Headers, such
    as a collector's key, come from OTEL_EXPORTER_OTLP_HEADERS."""
    otlp_protocol: Literal["grpc", "http"] = "grpc"
    """What the endpoint speaks: OTLP over gRPC (usually port 4317) or HTTP (4318)."""
    trace_sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of requests that are traced. Those that come with a `traceparent` follow its flag."""
    vllm_metric_names: bool = True
    """`/metrics` also says under vLLM's names what existing dashboards and autoscalers ask for."""
    goodput_ttft_s: PositiveFloat = 2.0
    """Requests count as goodput on `/dashboard` if their first token came within this,"""
    goodput_tpot_s: PositiveFloat = 0.1
    """and their others this far apart, on average."""
    debug_requests: Literal["auto", "off", "admin", "public"] = "auto"
    """Where `/debug/requests` is: on the admin server, or also where everybody's requests go, for
    the page. It shows ids, times and workers of recent requests, never their text. auto: public
    where only this machine can ask and nobody needs a key, else admin."""
    debug_ring_size: PositiveInt = 512
    """Requests that have ended and are still shown there."""
    peak_tflops: PositiveFloat | None = None
    """What a worker's rank multiplies at best, in 10^12 operations a second: MFU is a share of it.
    Unset: unknown, unless measured."""
    peak_gbytes_per_s: PositiveFloat | None = None
    """What a worker's rank reads at best, in 10^9 bytes a second: MBU is a share of it."""
    measure_peaks: bool = False
    """Measure the two at a worker's start, where they are unset. Takes a second or two."""


class FaultsConfig(Section):
    """Faults put in on purpose. For testing only: they make requests slow, and fail."""

    spec: str = ""
    """What goes wrong, where and when: `point:action[=seconds][:when ...]`, several with commas.
    Points: kv_pack, kv_send, kv_recv, kv_control, step, session, store. Actions: delay=SECONDS,
    drop, truncate, corrupt, fail. When: every=N, after=N, p=PROBABILITY, times=N, once, worker=ID.
    Example: `kv_send:delay=0.5:every=3,kv_send:corrupt:p=0.1,step:delay=1.0:once`. Empty: none."""
    seed: int = 0
    """Decides what `p` leaves open: the same faults come again at the same occurrences."""

    @field_validator("spec")
    @classmethod
    def _the_spec_is_sound(cls, spec: str) -> str:
        parse_faults(spec)
        return spec
