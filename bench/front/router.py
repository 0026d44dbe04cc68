"""A router before one synthetic worker: `python -m bench.front.router ADDRESS [SETTING ...]`.

It is the router of every Tandem, with the configured model's tokenizer; only membership is told.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from bench.front.process import say
from bench.front.worker import COMPAT_KEY, EPOCH, WORKER_ID
from core.config import Config, load_config
from core.loaded import keep_loaded
from core.request import Phase
from router.server import RouterServer
from state.memory import MemoryStore
from state.store import Member
from text.chat_template import ChatTemplate
from text.hub import resolve
from text.model_card import load_card
from text.tokenizer import load_tokenizer

_FOR_EVER_S = 1e9


async def _serve(config: Config, worker_address: str) -> None:
    card = load_card(resolve(config.model))
    template = ChatTemplate(card.chat_template, card.bos_token, card.eos_token)
    store = MemoryStore()
    member = Member(
        worker_id=WORKER_ID,
        epoch=EPOCH,
        role=Phase.DECODE,
        address=worker_address,
        model=card.name,
        compat_key=COMPAT_KEY,
    )
    await store.announce(member, ttl_s=_FOR_EVER_S)
    server = RouterServer(config, card, load_tokenizer(card), template, store)
    ports = await server.start()
    while server.fleet.readiness() is not None:
        await asyncio.sleep(0.01)
    keep_loaded()
    say(f"http://127.0.0.1:{ports.http}/v1")
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await server.stop(grace_s=0.0)


def main() -> None:
    address, *overrides = sys.argv[1:]
    here = ["router.mode=combined", "router.http_port=0", "router.grpc_port=0"]
    config = load_config(overrides=[*here, *overrides])
    uvloop.run(_serve(config, address))


if __name__ == "__main__":
    main()
