"""The router as one object: composition, and the order of starting and stopping.

start   membership > HTTP > gRPC, and the bound ports
stop    refuse new requests, let the others finish within the grace, fail those that don't (503),
        end HTTP, gRPC, membership and sessions
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from core.clock import Clock, MonotonicClock
from core.config import Config
from core.request import AttemptDone, Phase
from core.tracing import make_tracing
from protos.certificate_files import front_certificates, peer_certificates
from protos.secure_grpc import is_loopback
from router.admission import Admission, shutting_down
from router.door import Door, DoorSettings
from router.fleet.fleet import Fleet
from router.fleet.leg_event import LegEnd
from router.fleet.membership import Membership
from router.fleet.policy import PolicySettings
from router.fleet.prefix_map import PrefixMap
from router.fleet.sessions import SessionSettings
from router.http.app import HttpSettings, create_app
from router.http.server import HttpServer
from router.identifiers import new_router_id
from router.life.request_life import LifeSettings
from router.metrics import RouterMetrics
from router.observe.observer import Observer, ObserverSettings
from router.rpc.server import GrpcServer
from router.texts import Texts
from state.store import Store
from text.card import ModelCard
from text.chat_template import ChatTemplate
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
    ) -> None:
        """The store stays the caller's: it is not closed here. Raises ConfigError."""
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
        )
        self._door = Door(
            fleet=self.fleet,
            texts=self._texts,
            admission=Admission(router.max_num_requests),
            metrics=self.metrics,
            observer=self.observer,
            settings=settings,
            clock=clock,
        )
        self._membership = Membership(
            store,
            self.fleet,
            period_s=config.worker.heartbeat_s,
            timeout_s=config.state.timeout_s,
        )
        shows_requests = observability.debug_requests == "public"
        http = HttpSettings(router.max_body_bytes, int(time.time()), shows_requests)
        app = create_app(self._door, http)
        self._http = HttpServer(
            app, host=router.http_host, port=router.http_port, certificates=front
        )
        self._grpc = GrpcServer(
            self._door,
            host=router.grpc_host,
            port=router.grpc_port,
            max_body_bytes=router.max_body_bytes,
            certificates=front,
        )
        for name, host in (("http_host", router.http_host), ("grpc_host", router.grpc_host)):
            if front is None and not is_loopback(host):
                log.warning("router.%s is %s without router.tls_certificate: plain", name, host)
        self._following: asyncio.Task[None] | None = None

    @property
    def door(self) -> Door:
        return self._door

    async def start(self) -> RouterPorts:
        """Serves; returns the bound ports. Ready for requests once `/ready` says so.

        Raises ConfigError if a port is taken; then nothing is left running.
        """
        self._following = asyncio.create_task(self._membership.run(), name="membership")
        try:
            http_port = await self._http.start(timeout_s=START_TIMEOUT_S)
            grpc_port = await self._grpc.start()
        except BaseException:
            await self.stop(grace_s=0.0)
            raise
        return RouterPorts(http_port, grpc_port)

    async def wait(self) -> None:
        """Until `stop`. Raises what broke the membership loop, if anything ever does."""
        assert self._following is not None, "not started"
        await asyncio.shield(self._following)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Refuses new requests, lets the present ones end in time, then ends all. Idempotent."""
        self._door.admission.draining = True
        if not await self._door.drained(grace_s):
            self._door.end_all(shutting_down())
            await self._door.drained(LAST_WORDS_S)
        await self._http.stop()
        await self._grpc.stop()
        self._membership.close()
        if self._following is not None:
            await asyncio.wait({self._following})
        await self.fleet.close()
        self._texts.close()
        await asyncio.to_thread(self._tracing.close, LAST_WORDS_S)

    def _leg_ended(self, phase: Phase, event: LegEnd) -> None:
        self.metrics.leg_ended(phase, event)
        if isinstance(event, AttemptDone):
            self.observer.leg_done(phase, event)


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


def _max_model_len(config: Config, card: ModelCard) -> int:
    return config.model.max_model_len or card.max_model_len


def _door_settings(config: Config, card: ModelCard) -> DoorSettings:
    router = config.router
    return DoorSettings(
        model=config.model.served_model_name or card.name,
        max_model_len=_max_model_len(config, card),
        vocab_size=card.vocab_size,
        request_timeout_s=router.request_timeout_s,
        log_prompts=router.log_prompts,
        life=LifeSettings(
            max_attempts=router.max_attempts,
            no_worker_timeout_s=router.no_worker_timeout_s,
            block_size=config.cache.block_size,
        ),
    )
