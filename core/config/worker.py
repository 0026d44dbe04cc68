"""What one worker runs: model, cache, steps, ranks, transfers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from core.config.section import Port, PositiveFloat, PositiveInt, Section


class ModelConfig(Section):
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


class CacheConfig(Section):
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
    max_pinned_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of a pool's blocks that clients may pin (`cache_control`): kept for minutes or an hour,
    and evicted last. What is asked beyond that is served, but not pinned. 0: nothing is."""


class SchedulerConfig(Section):
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


class ParallelConfig(Section):
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


class WorkerConfig(Section):
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
    prefill_nice: Annotated[int, Field(ge=0, le=19)] = 10
    """Niceness of prefill workers' processes (on Linux): where cores are short, decode workers and
    the router go first, so that streams keep their pace. 0: all are equal."""


class TransferConfig(Section):
    """KV on its way from P to D."""

    backend: Literal["auto", "shm", "tcp", "gloo", "tls", "nccl", "memory"] = "auto"
    """auto: nccl between GPUs; else shared memory (shm) between workers of one machine and user,
    and tcp between machines; where tls.* is set, TLS connections between the memory of hosts in
    place of nccl and tcp. Anything else is the only way, and must be both sides': shm within a
    machine, and never shm with tcp, gloo or tls. tcp, gloo and nccl encrypt nothing; tcp takes only
    who has the link's token, gloo and nccl whoever connects. memory works inside one process only
    (tests)."""
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
