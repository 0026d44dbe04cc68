"""What the router lets in, and on whose account."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from core.config.section import Port, PositiveFloat, PositiveInt, Section, absolute

MIN_ADMIN_TOKEN_LENGTH = 16


class RouterConfig(Section):
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
    """Threads that tokenise prompts and render templates; half as many more, at least one, work for
    `/tokenize` and `/detokenize`."""
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

    _files = field_validator("tls_certificate", "tls_key", "tls_client_ca")(absolute)

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


class GuardConfig(Section):
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

    _file = field_validator("policy_file")(absolute)

    @field_validator("service_url")
    @classmethod
    def _the_url_is_one(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return url


class TenantsConfig(Section):
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
    pinned_tokens: Annotated[int, Field(ge=0)] | None = None
    """Prompt tokens that a key which says nothing else may have pinned at once, on all workers
    together (`cache_control`). Unset: no limit but cache.max_pinned_share."""
    class_headroom: Annotated[float, Field(ge=0, lt=0.5)] = 0.1
    """Share of the house (requests and waiting tokens) that each priority class leaves to those
    above it."""
    prices_file: str | None = None
    """TOML file with a section for each model: input, cached_input and output, in money for a
    million tokens; pinned_hour, for a million tokens that stay pinned an hour; batch_discount."""

    _files = field_validator("file", "prices_file")(absolute)


class BatchConfig(Section):
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

    _dir = field_validator("dir")(absolute)
