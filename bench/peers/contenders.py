"""Who is measured: each a name, and how its server is started.

Every server gets the same weights and the same number of threads; else it runs as its own users
run it, with the settings that its documentation asks for on a CPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.layouts import combined, pair
from bench.peers.places import ModelFiles, Peer, Places
from bench.peers.workloads import Demand
from bench.tandem_server import free_port, serve_command
from core.errors import ConfigError

SERVED_NAME = "peer-model"
"""What every server calls the model, if it lets one choose."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a contender's command line is made of, apart from what makes it this contender."""

    places: Places
    files: ModelFiles
    model: str
    """As Tandem's `model.model`."""
    num_threads: int
    redis_server: str = "redis-server"
    """The program, for who needs one."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One way to start a server; workloads with equal launches share it."""

    command: tuple[str, ...]
    """Without the port, which `with_port` adds."""
    environment: Mapping[str, str] = field(default_factory=dict)
    port_arguments: Callable[[int], list[str]] = lambda port: ["--port", str(port)]

    def with_port(self, port: int) -> list[str]:
        """The whole command line. `env` sets the variables and then becomes the server."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        prefix = ["env", *variables] if variables else []
        return [*prefix, *self.command, *self.port_arguments(port)]


@dataclass(frozen=True, slots=True)
class Contender:
    """A server in one configuration."""

    name: str
    launch: Callable[[Setting, Demand], Launch]
    peer: Peer | None = None
    """Whose environment it needs; None: Tandem's own."""
    served_name: Callable[[Setting], str] = lambda setting: SERVED_NAME
    ignore_eos: bool = True
    extra_body: Mapping[str, object] = field(default_factory=dict)
    """What asks for a fixed length where `ignore_eos` is unknown."""
    only: tuple[str, ...] = ()
    """The workloads it is there for; all if empty."""
    without: tuple[str, ...] = ()
    needs_redis: bool = False
    kept: bool = False
    """Starting takes so long that it is paused between its turns instead of stopped."""

    def takes(self, workload: str) -> bool:
        return (not self.only or workload in self.only) and workload not in self.without


_ARRIVALS = ("arrival-512", "arrival-2048", "arrival-7936")
_QUANTISED = ("stream", "concurrency-8", "concurrency-32", "prefill-1024", "prefill-4096")
_BFLOAT16 = {"model.dtype": "bfloat16"}
_INT8_KV = {"cache.kv_cache_dtype": "int8"}
_UNCHUNKED = {"scheduler.prefill_chunk_tokens": "8192", "scheduler.max_num_batched_tokens": "8192"}


def all_contenders() -> tuple[Contender, ...]:
    """Every contender, ours first; each round measures them in this order."""
    return (
        Contender("tandem bf16", _tandem(combined, _BFLOAT16)),
        Contender("tandem int8", _tandem(combined, _quantised("int8")), only=_QUANTISED),
        Contender("tandem int4", _tandem(combined, _quantised("int4")), only=_QUANTISED),
        Contender("tandem w8a8", _tandem(combined, _quantised("w8a8"))),
        Contender("tandem w8a8 int8-KV", _tandem(combined, _quantised("w8a8") | _INT8_KV)),
        Contender("tandem 1P+1D bf16", _tandem(pair, _BFLOAT16)),
        Contender("tandem 1P+1D bf16 int8-KV", _tandem(pair, _BFLOAT16 | _INT8_KV), only=_ARRIVALS),
        Contender("tandem 1P+1D by hand bf16", _by_hand, only=("start",), needs_redis=True),
        Contender(
            "tandem unchunked bf16",
            _tandem(combined, {**_BFLOAT16, **_UNCHUNKED}),
            only=_ARRIVALS,
        ),
        Contender("vllm bf16", _vllm(), peer="vllm", kept=True),
        Contender(
            "vllm bf16 chunks 256",
            _vllm("--max-num-batched-tokens", "256"),
            peer="vllm",
            only=_ARRIVALS,
            kept=True,
        ),
        Contender("llama.cpp bf16", _llama("BF16"), peer="llama.cpp"),
        Contender("llama.cpp Q8_0", _llama("Q8_0"), peer="llama.cpp", only=_QUANTISED),
        Contender("llama.cpp Q4_1", _llama("Q4_1"), peer="llama.cpp", only=_QUANTISED),
        Contender(
            "transformers bf16",
            _transformers,
            peer="transformers",
            served_name=lambda setting: str(setting.files.huggingface),
            ignore_eos=False,
            extra_body={"generation_config": json.dumps({"eos_token_id": -1, "pad_token_id": 0})},
            # It computes one request after the other: crowds would only measure its queue
            without=("concurrency-32", "azure", "short-64", *_ARRIVALS),
        ),
    )


def chosen_contenders(names: Sequence[str]) -> tuple[Contender, ...]:
    """The named ones in their own order, all without names. Raises ConfigError."""
    known = all_contenders()
    for name in names:
        if name not in (contender.name for contender in known):
            raise ConfigError(
                f"contender {name!r} is none of {', '.join(repr(c.name) for c in known)}"
            )
    return tuple(contender for contender in known if not names or contender.name in names)


def _quantised(kind: str) -> dict[str, str]:
    return {**_BFLOAT16, "model.quantization": kind}


def _tandem(
    layout: Callable[[int], dict[str, str]], settings: Mapping[str, str]
) -> Callable[[Setting, Demand], Launch]:
    def launch(setting: Setting, demand: Demand) -> Launch:
        command = serve_command({**layout(setting.num_threads), **_named(setting), **settings})
        return Launch(tuple(command), port_arguments=_as_options)

    return launch


def _by_hand(setting: Setting, demand: Demand) -> Launch:
    settings = {**pair(setting.num_threads), **_named(setting), **_BFLOAT16}
    texts = (f"{name}={value}" for name, value in settings.items())
    module = (sys.executable, "-m", "bench.peers.by_hand", setting.redis_server)
    return Launch((*module, *texts), port_arguments=_ports)


def _named(setting: Setting) -> dict[str, str]:
    return {"model.model": setting.model, "model.served_model_name": SERVED_NAME}


def _ports(port: int) -> list[str]:
    return [f"router.http_port={port}", f"router.grpc_port={free_port()}"]


def _as_options(port: int) -> list[str]:
    return [part for text in _ports(port) for part in ("--set", text)]


def _vllm(*flags: str) -> Callable[[Setting, Demand], Launch]:
    def launch(setting: Setting, demand: Demand) -> Launch:
        command = (
            *(str(setting.places.program("vllm")), "serve", str(setting.files.huggingface)),
            *("--served-model-name", SERVED_NAME, "--dtype", "bfloat16", "--host", "127.0.0.1"),
            *flags,
        )
        environment = {
            "LD_PRELOAD": ":".join(map(str, setting.places.preloads())),
            "VLLM_CPU_KVCACHE_SPACE": "3",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{setting.num_threads - 1}",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        return Launch(command, environment)

    return launch


def _llama(ggml_type: str) -> Callable[[Setting, Demand], Launch]:
    def launch(setting: Setting, demand: Demand) -> Launch:
        # Its context is shared out among its slots when it starts; a slot's share is a multiple of
        # 256. Without a cache of earlier prompts in memory: no request here repeats one.
        per_slot = -(-demand.tokens_per_seq // 256) * 256
        command = (
            *(str(setting.places.program("llama.cpp")), "-m", str(setting.files.gguf(ggml_type))),
            *("-a", SERVED_NAME, "--host", "127.0.0.1", "--offline", "--no-ui"),
            *("-np", str(demand.num_seqs), "-c", str(demand.num_seqs * per_slot)),
            *("--no-kv-unified", "--cache-ram", "0"),
            *_pinned(setting.num_threads),
        )
        return Launch(command)

    return launch


def _pinned(num_threads: int) -> tuple[str, ...]:
    """A thread a core: unpinned, another process's load makes a token cost a second."""
    count, mask = str(num_threads), hex((1 << num_threads) - 1)
    return ("-t", count, "-tb", count, "-C", mask, "--cpu-strict", "1")


def _transformers(setting: Setting, demand: Demand) -> Launch:
    command = (
        *(str(setting.places.program("transformers")), "serve", str(setting.files.huggingface)),
        *("--device", "cpu", "--dtype", "bfloat16", "--host", "127.0.0.1"),
    )
    threads = str(setting.num_threads)
    return Launch(command, {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"})
