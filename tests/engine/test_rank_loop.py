"""A rank does what its leader's plans say, in their order, and says which blocks they need."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fakes_byte_model import write_byte_model

from core.config import ModelConfig, load_config
from core.errors import WorkerLostError
from engine.builder import Rank, build_rank
from engine.plan_channel import PlanListener, PlanReceiver, PlanSender
from engine.plan_message import CopyBlocks, Step, Unpack
from engine.rank_loop import RankLoop
from engine.runner import profile_step
from kv_transfer.rank_port import RankPort
from model.tensor_parallel import TensorParallel
from text.hub import resolve
from text.model_card import load_card

HOST = "127.0.0.1"
LONG_S = 60.0
BLOCK_SIZE = 16
STEP = Step(profile_step(2, 40, BLOCK_SIZE))  # blocks 0, 1 and 2


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Rank:
    model = write_byte_model(tmp_path_factory.mktemp("model"))
    overrides = [f"model.model={model}", "cache.num_blocks=32", "model.max_model_len=128"]
    config = load_config(environ={}, overrides=[*overrides, "parallel.num_threads=1"])
    card = load_card(resolve(ModelConfig(model=str(model))))
    tp = TensorParallel.single()
    return build_rank(config, card, num_sharers=1, progress=lambda _: None, tp=tp)


class Following:
    """A leader's sender, and the loop of its rank."""

    def __init__(self, rank: Rank) -> None:
        self.ended: queue.Queue[BaseException | None] = queue.Queue()
        self.taken: list[int] = []
        listener = PlanListener(HOST)
        with ThreadPoolExecutor() as thread:
            gathered = thread.submit(listener.gather, 2, LONG_S)
            plans = PlanReceiver(HOST, listener.port, listener.token, 1, timeout_s=LONG_S)
        self.sender = PlanSender(gathered.result(), heartbeat_s=LONG_S, timeout_s=LONG_S)
        self._port = RankPort(HOST, secrets.token_bytes(32))
        self._loop = RankLoop(rank, plans, self._port, self.ended.put, self.taken.append)
        self._loop.start()

    def end(self) -> BaseException | None:
        """What ended the rank: None if the leader's word did."""
        self.sender.close()
        return self.ended.get(timeout=LONG_S)

    def close(self) -> None:
        self.sender.close()
        assert self._loop.stop(LONG_S)
        self._port.close()


@pytest.fixture
def following(rank: Rank) -> Iterator[Following]:
    made = Following(rank)
    yield made
    made.close()


def test_plans_are_followed_in_their_order_until_the_leader_ends_it(
    following: Following, rank: Rank
) -> None:
    with following.sender.step(STEP):
        pass
    following.sender.send(CopyBlocks(((1, 7), (2, 9))))
    following.sender.send(CopyBlocks(((7, 8),)))
    assert following.end() is None
    first, *copies = rank.storage.pack([1, 7, 8])
    assert first.any()
    assert all(torch.equal(copy, first) for copy in copies)


def test_it_says_which_blocks_a_plan_needs(following: Following) -> None:
    with following.sender.step(STEP):
        pass
    following.sender.send(CopyBlocks(((1, 7), (2, 9), (0, 4))))
    assert following.end() is None
    assert following.taken == [2, 9, -1], "and none to end"


def test_a_plan_that_fails_ends_the_rank(following: Following) -> None:
    following.sender.send(Unpack("unknown", 1, (3,)))
    assert isinstance(following.ended.get(timeout=LONG_S), KeyError)


def test_a_leader_that_is_gone_without_a_word_ends_the_rank(rank: Rank) -> None:
    following = Following(rank)
    for connection in following.sender._connections:
        connection.close()
    assert isinstance(following.ended.get(timeout=LONG_S), WorkerLostError)
    following.close()
