"""The router as the composition sees it: addresses out, one way to stop."""

from __future__ import annotations

from cluster.shell import Endpoints
from core.config import Config
from router.server import RouterServer
from state.store import Store
from text.card import ModelCard
from text.chat_template import ChatTemplate
from text.hub import resolve
from text.model_card import load_card
from text.tokenizer import Tokenizer, load_tokenizer


class RouterProcess:
    """A `Router` around the real `RouterServer`."""

    def __init__(self, config: Config, server: RouterServer) -> None:
        self._config = config.router
        self._server = server

    async def start(self) -> Endpoints:
        # Before anybody streams: it holds Python's lock for a tenth of a second
        await self._server.warm_up()
        ports = await self._server.start()
        return Endpoints(
            http=f"{self._config.http_host}:{ports.http}",
            grpc=f"{self._config.grpc_host}:{ports.grpc}",
        )

    async def wait_failed(self) -> None:
        await self._server.wait()

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s=grace_s)


def load_texts(config: Config) -> tuple[ModelCard, Tokenizer, ChatTemplate]:
    """The model's words, without its weights. Blocks while it reads. Raises ConfigError."""
    card = load_card(resolve(config.model))
    template = ChatTemplate(card.chat_template, card.bos_token, card.eos_token)
    return card, load_tokenizer(card), template


def build_router(
    config: Config, texts: tuple[ModelCard, Tokenizer, ChatTemplate], store: Store
) -> RouterProcess:
    """Call in the event loop that the router will live in."""
    return RouterProcess(config, RouterServer(config, *texts, store))
