"""The router as one object: composition, and the order of starting and stopping.

start   membership, limits and batches > HTTP > gRPC > admin, and the bound ports
stop    leave batches to others, refuse new requests, let the present ones finish within the grace,
        fail those that don't (503), end HTTP, gRPC, admin, membership, sessions and limits
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from core.clock import Clock, MonotonicClock
from core.config import Config
from core.request import AttemptDone, Phase
from core.tracing import make_tracing
from protos.certificate_files import (
    CertificateFiles,
    FrontTls,
    front_certificates,
    peer_certificates,
)
from protos.secure_grpc import is_loopback
from router.admin.app import Admin, create_admin_app
from router.admission import shutting_down
from router.batch.batch_metrics import BatchMetrics
from router.batch.batches import Batches
from router.dialect import make_dialect
from router.door import Door, DoorSettings
from router.fleet.fleet import Fleet
from router.fleet.leg_event import LegEnd
from router.fleet.membership import Membership
from router.fleet.policy import PolicySettings
from router.fleet.prefix_map import PrefixMap
from router.fleet.sessions import SessionSettings
from router.guard.build import build_guard
from router.http.app import HttpSettings, create_app
from router.http.server import HttpServer
from router.identifiers import new_router_id
from router.life.request_life import LifeSettings
from router.metrics import RouterMetrics
from router.observe.debug import add_debug
from router.observe.observer import Observer, ObserverSettings
from router.observe.request_window import ServiceLevel
from router.rpc.server import GrpcServer
from router.structure.grammar_check import GrammarCheck
from router.tenancy import Tenancy
from router.texts import Texts
from state.store import Store
from text.card import ModelCard
from text.chat_template import ChatTemplate
from text.generation_defaults import GenerationDefaults
from text.structure.compiler import GrammarCompiler
from text.structure.vocabulary import grammar_vocabulary
from text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

SERVICE = "tandem-router"
"""What traces call this process."""
MAX_PREFIX_BLOCKS = 1_000_000
"""Blocks whose holders the router remembers: about 200 MB at most, 16 million tokens of KV."""
START_TIMEOUT_S = 10.0
LAST_WORDS_S = 1.0
"""For telling clients, and workers, that their requests end with us."""


@dataclass(frozen=True, slots=True)
class RouterPorts:
    """The ports that were bound."""

    http: int
    grpc: int
    admin: int | None = None


class RouterServer:
    """A router in this process. Needs a running event loop; knows nothing of Ray or signals."""

    def __init__(
        self,
        config: Config,
        card: ModelCard,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        store: Store,
        *,
        clock: Clock | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """The store stays the caller's: it is not closed here. `wall` is Unix time in seconds, by
        which files and batches expire. Raises ConfigError."""
        router, clock = config.router, clock or MonotonicClock()
        front = front_certificates(router)
        settings, observability = _door_settings(config, card), config.observability
        router_id = new_router_id()
        self._tracing = make_tracing(observability, service=SERVICE, instance=router_id)
        self.metrics = RouterMetrics(settings.model, observability.vllm_metric_names)
        self.observer = Observer(
            self._tracing,
            self.metrics,
            clock,
            ObserverSettings(
                settings.model,
                observability.log_requests,
                observability.trace_sample_ratio,
                observability.debug_ring_size,
                ServiceLevel(observability.goodput_ttft_s, observability.goodput_tpot_s),
            ),
        )
        self.fleet = Fleet(
            _session_settings(config, router_id),
            _policy_settings(config),
            PrefixMap(MAX_PREFIX_BLOCKS),
            self._leg_ended,
        )
        self.metrics.watch(self.observer.ring.running, self.fleet.loads)
        self._texts = Texts(
            tokenizer,
            chat_template,
            num_threads=router.tokenizer_threads,
            max_model_len=_max_model_len(config, card),
            trusts_templates=router.trust_request_chat_template,
            dialect=make_dialect(config.model, card.chat_template),
            grammars=GrammarCheck(
                GrammarCompiler(lambda: grammar_vocabulary(tokenizer, card.vocab_size))
            ),
        )
        self._tenancy = Tenancy(config, self.fleet, self.metrics, clock, model=settings.model)
        self._door = Door(
            fleet=self.fleet,
            texts=self._texts,
            hall=self._tenancy.hall,
            metrics=self.metrics,
            observer=self.observer,
            settings=settings,
            clock=clock,
            guard=build_guard(config, tokenizer, card, self.metrics.registry, clock),
        )
        batch_metrics = BatchMetrics(self.metrics.registry)
        gatekeeper = self._tenancy.gatekeeper
        self._batches = Batches(config, self._door, gatekeeper, batch_metrics, clock, wall)
        self._membership = Membership(
            store,
            self.fleet,
            period_s=config.worker.heartbeat_s,
            timeout_s=config.state.timeout_s,
        )
        http = HttpSettings(
            router.max_body_bytes,
            int(time.time()),
            _origins(router.cors_origins),
            shows_requests=_shows_requests(config),
        )
        app = create_app(self._door, http, self._tenancy.gatekeeper, self._batches)
        self._http = HttpServer(
            app, host=router.http_host, port=router.http_port, certificates=front
        )
        self._grpc = GrpcServer(
            self._door,
            host=router.grpc_host,
            port=router.grpc_port,
            max_body_bytes=router.max_body_bytes,
            keepalive_s=router.grpc_keepalive_s,
            gatekeeper=self._tenancy.gatekeeper,
            certificates=front,
        )
        shown = self.observer if observability.debug_requests != "off" else None
        self._admin = _admin_server(config, self._tenancy, shown, front)
        for name, host in (
            ("http_host", router.http_host),
            ("grpc_host", router.grpc_host),
            ("admin_host", router.admin_host),
        ):
            if front is None and not is_loopback(host):
                log.warning("router.%s is %s without router.tls_certificate: plain", name, host)
        self._following: asyncio.Task[None] | None = None

    @property
    def door(self) -> Door:
        return self._door

    async def warm_up(self) -> None:
        """Makes what the first request with structure would have to wait for, and all others with
        it. It may be left out."""
        await self._texts.warm_up()

    async def start(self) -> RouterPorts:
        """Serves; returns the bound ports. Ready for requests once `/ready` says so.

        Raises ConfigError if a port is taken; then nothing is left running.
        """
        self._following = asyncio.create_task(self._membership.run(), name="membership")
        self._tenancy.start()
        self._batches.start()
        try:
            http_port = await self._http.start(timeout_s=START_TIMEOUT_S)
            grpc_port = await self._grpc.start()
            admin_port = None
            if self._admin is not None:
                admin_port = await self._admin.start(timeout_s=START_TIMEOUT_S)
                log.info("admin server on port %d", admin_port)
        except BaseException:
            await self.stop(grace_s=0.0)
            raise
        return RouterPorts(http_port, grpc_port, admin_port)

    async def wait(self) -> None:
        """Until `stop`. Raises what broke the loop of membership or limits, if anything does."""
        assert self._following is not None, "not started"
        tasks = {self._following, *self._tenancy.tasks}
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Refuses new requests, lets the present ones end in time, then ends all. Idempotent."""
        await self._batches.stop()
        self._door.admission.draining = True
        if not await self._door.drained(grace_s):
            self._door.end_all(shutting_down())
            await self._door.drained(LAST_WORDS_S)
        await self._http.stop()
        await self._grpc.stop()
        if self._admin is not None:
            await self._admin.stop()
        self._membership.close()
        if self._following is not None:
            await asyncio.wait({self._following})
        await self.fleet.close()
        await self._batches.close()
        await self._tenancy.close()
        self._texts.close()
        if self._door.guard is not None:
            await self._door.guard.close()
        await asyncio.to_thread(self._tracing.close, LAST_WORDS_S)

    def _leg_ended(self, phase: Phase, event: LegEnd) -> None:
        self.metrics.leg_ended(phase, event)
        if isinstance(event, AttemptDone):
            self.observer.leg_done(phase, event)


def _shows_requests(config: Config) -> bool:
    """Whether everybody who may ask sees recent requests."""
    where = config.observability.debug_requests
    if where == "auto":
        return is_loopback(config.router.http_host) and not config.tenants.require_keys
    return where == "public"


def _admin_server(
    config: Config,
    tenancy: Tenancy,
    observer: Observer | None,
    front: CertificateFiles[FrontTls] | None,
) -> HttpServer | None:
    """`observer` is whose requests are shown there."""
    router, store = config.router, tenancy.store
    if router.admin_port is None or router.admin_token is None or store is None:
        return None
    app = create_admin_app(
        Admin(router.admin_token, store, tenancy.hall, tenancy.ring, tenancy.limits)
    )
    if observer is not None:
        add_debug(app, observer)
    return HttpServer(app, host=router.admin_host, port=router.admin_port, certificates=front)


def _session_settings(config: Config, router_id: str) -> SessionSettings:
    worker = config.worker
    return SessionSettings(
        router_id=router_id,
        silence_s=max(3 * worker.heartbeat_s, worker.stuck_after_s),
        certificates=peer_certificates(config.tls),
    )


def _policy_settings(config: Config) -> PolicySettings:
    return PolicySettings(
        combined=config.router.mode == "combined",
        prefix_affinity_weight=config.router.prefix_affinity_weight,
        max_num_waiting=config.scheduler.max_num_waiting,
    )


def _origins(setting: str) -> tuple[str, ...]:
    return tuple(origin for part in setting.split(",") if (origin := part.strip()))


def _max_model_len(config: Config, card: ModelCard) -> int:
    return config.model.max_model_len or card.max_model_len


def _generation_defaults(config: Config, card: ModelCard) -> GenerationDefaults:
    if config.model.generation_config == "none":
        return GenerationDefaults()
    given = card.generation_config
    top_k = given.get("top_k")
    others = {name: value for name, value in given.items() if name != "top_k"}
    return GenerationDefaults(top_k=None if top_k is None else int(top_k), **others)


def _door_settings(config: Config, card: ModelCard) -> DoorSettings:
    router = config.router
    return DoorSettings(
        model=config.model.served_model_name or card.name,
        max_model_len=_max_model_len(config, card),
        vocab_size=card.vocab_size,
        request_timeout_s=router.request_timeout_s,
        log_prompts=router.log_prompts,
        defaults=_generation_defaults(config, card),
        life=LifeSettings(
            max_attempts=router.max_attempts,
            no_worker_timeout_s=router.no_worker_timeout_s,
            block_size=config.cache.block_size,
        ),
    )
