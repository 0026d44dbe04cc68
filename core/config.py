"""The one typed, frozen configuration, and the only place that reads the environment.

Values come from, later wins: defaults here < TOML file < environment (`TANDEM_SECTION__KEY`) <
`--set section.key=value`. Unknown sections and keys are refused with the nearest known name.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from core.errors import ConfigError
from core.faults import parse_faults

ENV_PREFIX = "TANDEM_"
MIN_ADMIN_TOKEN_LENGTH = 16

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


def _absolute(path: str | None) -> str | None:
    """Of a file that processes with other working directories read too."""
    return None if path is None else str(Path(path).expanduser().absolute())


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ModelConfig(_Section):
    """Which model is served, and in what precision."""

    model: str = "default"
    """`default` (SmolLM2-135M-Instruct), a Hugging Face directory, a hub id, or a .gguf file."""
    served_model_name: str | None = None
    """The name clients use; unset: the model's own name."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Arithmetic and KV type. auto: on CPUs bfloat16 where they have instructions for it (AVX-512
    BF16) and float32 elsewhere, on GPUs the checkpoint's own. float16 is refused on CPUs, where it
    is 400 times slower."""
    quantization: Literal["none", "auto", "int8", "int4", "w8a8"] = "none"
    """Type of the layers' weights. none: as dtype, also those that a checkpoint has quantised.
    auto: as the checkpoint has them. int8, int4: rounded at load. w8a8: int8, and activations are
    rounded to int8 too."""
    quantization_group_size: Literal[32, 64, 128] = 32
    """Weights of a row that share a scale in int4; fewer are more precise."""
    calibration: str | None = None
    """A file written by `tandem calibrate`, which makes rounded weights more precise."""
    tool_parser: Literal["auto", "none", "hermes", "llama3", "mistral"] = "auto"
    """How the model writes calls of tools. auto: as its chat template shows. none: tools are
    refused."""
    reasoning_parser: Literal["auto", "none", "think"] = "auto"
    """Whether answers may begin with thoughts, `<think>...</think>`, which clients then get as
    `reasoning_content`. auto: if the chat template knows them."""
    max_model_len: PositiveInt | None = None
    """Longest prompt plus output in tokens; unset: what the model was trained for."""
    generation_config: Literal["auto", "none"] = "auto"
    """Where a request leaves temperature, top_p, top_k, min_p or repetition_penalty open. auto:
    what the model's generation_config.json says, if anything. none: OpenAI's defaults. Its end
    tokens always count."""
    hub_token: str | None = Field(default=None, repr=False)
    """Access token for gated hub models."""
    offline: bool = False
    """Never touch the network; use only what is already on disk."""
    cache_dir: str | None = None
    """Where fetched models are kept; unset: ~/.cache/tandem/models."""
    hub_endpoint: str | None = None
    """Another address of the model hub (a mirror); unset: the hub library's own."""
    download_timeout_s: PositiveFloat = 1800.0
    """Deadline of fetching a model, or of waiting for another process that fetches it."""


class CacheConfig(_Section):
    """The paged KV cache of each worker."""

    block_size: Literal[8, 16, 32, 64, 128] = 16
    """Tokens in a block."""
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "int8", "fp8"] = "auto"
    """Type of stored and transferred KV. auto: the type of arithmetic, which float types must be.
    int8 and fp8 (e4m3fn) take about half the bytes of bfloat16, each token and head with a scale
    of its own."""
    num_blocks: PositiveInt | None = None
    """Blocks in a worker's pool; unset: as many as the memory settings below allow."""
    kv_cache_memory_gib: PositiveFloat | None = None
    """A fixed budget for KV in GiB."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of a device's memory for weights, activations and KV together (on GPUs)."""
    cpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.25
    """The same on CPUs, where memory is shared with everything else; divided among the workers
    of a machine."""
    enable_prefix_caching: bool = True
    """Keep full blocks of finished sequences for requests that start alike."""


class SchedulerConfig(_Section):
    """How a worker fills its steps."""

    max_num_seqs: PositiveInt = 128
    """Sequences that run at once."""
    max_num_batched_tokens: PositiveInt = 2048
    """Tokens of one step, prefill and decode together."""
    prefill_chunk_tokens: PositiveInt = 512
    """Prompt tokens that one step computes, over all prompts; cancels take effect between steps."""
    admission_growth_tokens: Annotated[int, Field(ge=0)] = 256
    """Output tokens of every running sequence that a decode worker keeps room for when it admits
    another. More: fewer preemptions; less: more sequences at once."""
    max_num_waiting: PositiveInt = 4096
    """Attempts that may wait at one worker before it refuses more."""

    @model_validator(mode="after")
    def _a_step_holds_every_sequence(self) -> SchedulerConfig:
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): each running sequence has a token in a step"
            )
        return self


class ParallelConfig(_Section):
    """How one worker spreads over processes and cores."""

    tensor_parallel_size: PositiveInt = 1
    """Ranks in a worker's group."""
    prefill_tensor_parallel_size: PositiveInt | None = None
    """The same of prefill workers; unset: tensor_parallel_size. They may differ: KV heads find
    their way."""
    decode_tensor_parallel_size: PositiveInt | None = None
    """The same of decode workers; unset: tensor_parallel_size."""
    num_threads: PositiveInt | None = None
    """Compute threads of a rank; unset: this machine's cores divided by the ranks on it."""
    step_timeout_s: PositiveFloat = 5.0
    """How long the ranks of a group wait for one another within a step, and an idle one for an
    answer. A later rank is lost, and its group with it."""


class RouterConfig(_Section):
    """The front door."""

    http_host: str = "127.0.0.1"
    """Address the HTTP server binds."""
    http_port: Port = 8000
    """Port of the HTTP server; 0 picks a free one."""
    grpc_host: str = "127.0.0.1"
    """Address the public gRPC server binds."""
    grpc_port: Port = 50051
    """Port of the public gRPC server; 0 picks a free one."""
    admin_host: str = "127.0.0.1"
    """Address the admin server binds."""
    admin_port: Port | None = None
    """Port of the admin server (keys, usage, limits); 0 picks a free one, unset: there is none."""
    admin_token: str | None = Field(default=None, repr=False)
    """What the admin server's callers show as `Authorization: Bearer`, 16 characters or more;
    admin_port needs it."""
    tls_certificate: str | None = None
    """Certificate chain (PEM) that both public servers show; set, HTTP is HTTPS and gRPC is
    encrypted. New connections take a file that was replaced."""
    tls_key: str | None = None
    """Private key (PEM) of router.tls_certificate."""
    tls_client_ca: str | None = None
    """Certificates (PEM) of who signs for clients; set, public gRPC takes only calls with one of
    theirs."""
    mode: Literal["disaggregated", "combined"] = "disaggregated"
    """combined: send prompts straight to decode workers, which compute them themselves."""
    max_num_requests: PositiveInt = 1024
    """Requests in the house at once; more are answered 429."""
    max_waiting_prompt_tokens: PositiveInt = 1_048_576
    """Prompt tokens that may wait in the house for their first output token; more are answered
    429. A prompt that nothing waits before is always taken."""
    dispatch_ahead_tokens: PositiveInt | None = None
    """Prompt tokens that each worker that computes prompts is given before the rest waits at the
    router, where higher classes go first and tenants take turns. Unset: eight times
    scheduler.prefill_chunk_tokens."""
    request_timeout_s: PositiveFloat = 600.0
    """Deadline of a request that names none."""
    max_attempts: PositiveInt = 4
    """Tries of one request before it fails."""
    no_worker_timeout_s: PositiveFloat = 10.0
    """How long a request waits for a pair to exist before it is answered 503."""
    tokenizer_threads: PositiveInt = 2
    """Threads that tokenise prompts and render templates."""
    prefix_affinity_weight: Annotated[float, Field(ge=0)] = 1.0
    """How many waiting prompt tokens one cached prompt token outweighs; 0 routes by load alone."""
    trust_request_chat_template: bool = False
    """Render the chat templates that clients send with their requests. They are programs; in their
    sandbox they can still take much memory. Off: such requests are answered 400."""
    max_body_bytes: PositiveInt = 16 * 1024 * 1024
    """Largest request body, and largest gRPC message; more is answered 413."""
    grpc_keepalive_s: PositiveFloat = 20.0
    """Public gRPC asks a silent client this often whether it is still there, and ends its calls
    when no answer comes for as long again. Clients may ask five times as often, and no more."""
    cors_origins: str = ""
    """Origins whose web pages may call the HTTP API from a browser, separated by commas, or `*` for
    any. Empty: none, and browsers refuse."""
    log_prompts: bool = False
    """Write prompts to the log. Off: they never leave the process."""

    _files = field_validator("tls_certificate", "tls_key", "tls_client_ca")(_absolute)

    @model_validator(mode="after")
    def _the_admin_server_has_a_token(self) -> RouterConfig:
        if self.admin_port is not None and len(self.admin_token or "") < MIN_ADMIN_TOKEN_LENGTH:
            raise ValueError(
                f"admin_port needs an admin_token of {MIN_ADMIN_TOKEN_LENGTH} characters or more"
            )
        return self

    @model_validator(mode="after")
    def _the_front_door_has_certificate_and_key(self) -> RouterConfig:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together: set both or none")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        return self


class GuardConfig(_Section):
    """What may be asked and answered. See docs/GUARD.md."""

    enabled: bool = False
    """Check prompts before they are tokenised, and filter answers."""
    policy_file: str | None = None
    """Policies, TOML or JSON (.json); read again when it changes. Unset: prompts that follow a
    template of injection are refused, for all tenants."""
    service_url: str | None = None
    """An outside service that is asked as well: POST {stage, tenant, request_id, text, before},
    answered {action, spans}."""
    service_stages: Literal["input", "output", "both"] = "input"
    """What it is asked about. Answers are withheld until it has seen them."""
    service_window: PositiveInt = 200
    """Characters of an answer that it is asked about at once."""
    service_timeout_s: PositiveFloat = 1.0
    """Deadline of one question."""
    service_fail_open: bool = False
    """What can't be checked goes on unchecked. Off: it is answered 503."""
    service_max_concurrent: PositiveInt = 32
    """Questions at once; others wait, within their deadline."""
    service_breaker_failures: PositiveInt = 5
    """Failures in a row after which it is left alone for a while."""
    service_breaker_rest_s: PositiveFloat = 10.0
    """For how long; then one question shows whether it answers again."""

    _file = field_validator("policy_file")(_absolute)

    @field_validator("service_url")
    @classmethod
    def _the_url_is_one(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return url


class TenantsConfig(_Section):
    """API keys: who may ask, how much, and what it costs. With state.backend = redis all routers
    share keys, limits and usage; otherwise they lie in a file."""

    require_keys: bool = False
    """Refuse requests without a good API key (`tandem keys create`). Off: nobody looks at keys."""
    file: str | None = None
    """Keys and usage where state.backend is memory; unset: ~/.local/share/tandem/tenants.db."""
    open_metrics: bool = True
    """`/metrics` needs no key, as `/health`, `/live` and `/ready` never do."""
    refresh_s: PositiveFloat = 1.0
    """How old a router's knowledge of a key may be: a revoked one is refused after that."""
    store_timeout_s: PositiveFloat = 0.25
    """Deadline of a look at shared keys and limits; past it the router goes on with its own share
    of each limit until the store answers again."""
    cached_token_weight: Annotated[float, Field(ge=0, le=1)] = 0.1
    """What a prompt token found in a prefix cache counts towards limits and quotas."""
    batch_token_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """What tokens of the batch class count towards limits and quotas."""
    class_headroom: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Share of the house (requests and waiting tokens) that each priority class leaves to those
    above it."""
    prices_file: str | None = None
    """TOML file with a section for each model: input, cached_input and output, in money for a
    million tokens, and batch_discount."""

    _files = field_validator("file", "prices_file")(_absolute)


class BatchConfig(_Section):
    """Files and batches (`/v1/files`, `/v1/batches`). With state.backend = redis all routers share
    them, and `dir` must be one directory for all; otherwise their records lie in `dir` too."""

    enabled: bool = True
    """Off: both endpoints answer 404."""
    dir: str | None = None
    """Where files lie; unset: ~/.local/share/tandem/batch. Made when the first file comes."""
    max_concurrency: PositiveInt = 64
    """Requests of batches that one router has running at once, where online traffic leaves room."""
    max_running: PositiveInt = 8
    """Batches that one router runs side by side; the others wait for their turn."""
    max_file_bytes: PositiveInt = 200 * 1024 * 1024
    """Of one upload."""
    max_line_bytes: PositiveInt = 1024 * 1024
    """Of one request in a file."""
    max_num_lines: PositiveInt = 50_000
    """Requests in a file."""
    max_tenant_bytes: PositiveInt = 10 * 1024**3
    """All files of one key together, results included."""
    max_open_batches: PositiveInt = 100
    """Batches of one key that have not ended."""
    file_ttl_s: PositiveInt = 30 * 24 * 3600
    """How long a file is kept where its owner says nothing."""
    lease_s: PositiveFloat = 10.0
    """After a router dies, another goes on with its batches in that time."""
    store_timeout_s: PositiveFloat = 5.0
    """Deadline of each look at the records."""

    _dir = field_validator("dir")(_absolute)


class WorkerConfig(_Section):
    """A prefill or decode worker process."""

    host: str = "127.0.0.1"
    """Address the worker's gRPC server binds and announces; auto: this machine's own on the
    network, for workers on several machines; under Ray, the one by which Ray knows it."""
    port: Port = 0
    """Port of the worker's gRPC server; 0 picks a free one."""
    heartbeat_s: PositiveFloat = 1.0
    """Period of heartbeats; a member is gone after three missed ones."""
    load_report_s: PositiveFloat = 0.1
    """Shortest time between two load reports that differ; the same load is repeated every
    `heartbeat_s`."""
    stuck_after_s: PositiveFloat = 4.0
    """A worker with work pending whose last step is older than this is not ready; nor is one that
    has said nothing for so long. With reports on their way, `/ready` tells within 5 s."""
    drain_timeout_s: PositiveFloat = 30.0
    """How long a draining worker lets its sequences finish, or move to another decode worker."""
    prefill_nice: Annotated[int, Field(ge=0, le=19)] = 5
    """Niceness of prefill workers' processes (on Linux): where cores are short, decode workers and
    the router go first, so that streams keep their pace. 0: all are equal."""


class TransferConfig(_Section):
    """KV on its way from P to D."""

    backend: Literal["auto", "shm", "gloo", "tls", "nccl", "memory"] = "auto"
    """auto: nccl between GPUs; else shared memory (shm) between workers of one machine and user,
    and gloo between machines; where tls.* is set, TLS connections between the memory of hosts in
    place of nccl and gloo. Anything else is the only way: shm within a machine, and never shm with
    gloo or tls. gloo and nccl take whoever connects and encrypt nothing. memory works inside one
    process only (tests)."""
    max_message_bytes: PositiveInt = 8 * 1024 * 1024
    """Upper limit of one message; a block larger than this is a message of its own."""
    max_inflight_messages: PositiveInt = 4
    """Messages of a link that may be sent and not yet acknowledged; bounds the staging memory."""
    timeout_s: PositiveFloat = 3.0
    """Deadline of one message, of setting up a link, and of a silent pull once P has everything."""
    lease_s: PositiveFloat = 30.0
    """How long P keeps blocks for a pull that has not opened yet."""
    overlap: bool = True
    """Send blocks as chunks end. Off: send everything after the last chunk."""
    verify: bool = False
    """Send a checksum of each message's bytes, and check it before the blocks are used: a corrupted
    message fails its pull, and the prompt is computed again. On if either side wants it."""


class TlsConfig(_Section):
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

    _files = field_validator("ca", "certificate", "key")(_absolute)

    @model_validator(mode="after")
    def _all_files_or_none(self) -> TlsConfig:
        files = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        missing = [name for name, file in files.items() if file is None]
        if 0 < len(missing) < len(files):
            raise ValueError(f"ca, certificate and key belong together; missing: {missing}")
        return self


class StateConfig(_Section):
    """Where the cluster's shared state lives."""

    backend: Literal["memory", "redis"] = "memory"
    """memory: embedded, shared through Ray. redis: also for processes started by hand."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    """Redis server, for the redis backend."""
    namespace: str = "tandem"
    """Prefix of every key, so that clusters can share a server."""
    timeout_s: PositiveFloat = 2.0
    """Deadline of one call to the store."""


class ClusterConfig(_Section):
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


class LoggingConfig(_Section):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level written."""


class ObservabilityConfig(_Section):
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


class FaultsConfig(_Section):
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


class Config(_Section):
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


def _data_home(environ: Mapping[str, str] | None) -> Path:
    home = (os.environ if environ is None else environ).get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "tandem"


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


def _section_type(section: str) -> type[_Section]:
    annotation = Config.model_fields[section].annotation
    assert isinstance(annotation, type) and issubclass(annotation, _Section)
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
