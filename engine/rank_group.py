"""The ranks of one worker: how they meet, and what joins them.

    leader   host > tell others the rendezvous > gather their connections > build the group
    others   connect with the token > build the group
    then     all load and warm up; in service, deadlines are short

Two connections join them: plans from the leader to each of the others (plan_channel.py), and the
process group in which layers meet (model/tensor_parallel.py). Its store is hosted by the leader.
There the others also leave the ports at which they take their shares of KV links
(kv_transfer/rank_port.py). Neither store nor group keeps strangers out, so all ranks should meet at
an address that only this machine reaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Store

from core.errors import WorkerLostError
from engine.plan_channel import PlanListener, PlanReceiver, PlanSender
from engine.plan_message import Unpack
from engine.rendezvous import Rendezvous
from kv_transfer.process_group import Group, connect_store, gloo_group, host_store, nccl_group
from kv_transfer.rank_link import OtherRanks, RankAddress
from kv_transfer.rank_port import RankPort
from model.tensor_parallel import TensorParallel


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """Deadlines of a group, in seconds."""

    start_s: float
    """From the rendezvous until every rank has loaded."""
    step_s: float
    """Of one collective in service, and of an answer to a heartbeat."""
    heartbeat_s: float
    """Between two signs of life from an idle leader."""


class LeaderGroup:
    """The group as its leader, rank 0, has it."""

    def __init__(
        self,
        tp: TensorParallel,
        group: Group,
        plans: PlanSender,
        ranks: OtherRanks,
        step_s: float,
    ) -> None:
        self.tp = tp
        self.plans = plans
        self.ranks = ranks
        self._group = group
        self._step_s = step_s

    def enter_service(self) -> None:
        """All ranks have loaded: from here on a late one is a lost one."""
        self._group.set_timeout(timedelta(seconds=self._step_s))

    def close(self) -> None:
        self.plans.close()


class GroupHost:
    """A leader that waits for the other ranks, at an address of its own."""

    def __init__(self, host: str, size: int) -> None:
        assert size > 1
        self._listener = PlanListener(host)
        self._store, store_port = host_store(host)
        self.rendezvous = Rendezvous(
            host, self._listener.port, store_port, self._listener.token.hex(), size
        )

    def lead(self, times: GroupTimes, device: torch.device) -> LeaderGroup:
        """The group, once every rank has come. Raises WorkerLostError."""
        at = self.rendezvous
        connections = self._listener.gather(at.size, times.start_s)
        plans = PlanSender(connections, heartbeat_s=times.heartbeat_s, timeout_s=times.step_s)
        try:
            store = _connect(at, 0, times.start_s)
            group = _make_group(store, at, 0, device, times.start_s)
        except WorkerLostError:
            plans.close()
            raise
        # All ranks are in the group, and left their ports before
        addresses = [
            RankAddress(rank, at.host, int(store.get(_kv_port(rank)))) for rank in range(1, at.size)
        ]
        ranks = OtherRanks(
            addresses,
            bytes.fromhex(at.token),
            lambda link_id, seq, blocks: plans.send(Unpack(link_id, seq, tuple(blocks))),
            lambda: plans.num_settled,
        )
        return LeaderGroup(TensorParallel(0, at.size, group), group, plans, ranks, times.step_s)

    def close(self) -> None:
        """Ends a `lead` under way. Idempotent."""
        self._listener.close()


class Membership:
    """The group as one of the other ranks has it."""

    def __init__(self, at: Rendezvous, rank: int, times: GroupTimes, device: torch.device) -> None:
        """Joins. Raises WorkerLostError."""
        token = bytes.fromhex(at.token)
        self.plans = PlanReceiver(at.host, at.plan_port, token, rank, timeout_s=times.start_s)
        self.kv_port = RankPort(at.host, token)
        try:
            store = _connect(at, rank, times.start_s)
            store.set(_kv_port(rank), str(self.kv_port.port))
            self._group = _make_group(store, at, rank, device, times.start_s)
        except WorkerLostError:
            self.close()
            raise
        self.tp = TensorParallel(rank, at.size, self._group)
        self._times = times

    def enter_service(self) -> None:
        """All ranks have loaded: from here on a silent leader is a lost one."""
        self._group.set_timeout(timedelta(seconds=self._times.step_s))
        self.plans.patience(self._times.step_s + 3 * self._times.heartbeat_s)

    def close(self) -> None:
        """Nobody is to wait for this rank. Idempotent."""
        self.plans.close()
        self.kv_port.close()


def _kv_port(rank: int) -> str:
    return f"kv_port/{rank}"


def _connect(at: Rendezvous, rank: int, timeout_s: float) -> Store:
    try:
        return connect_store(at.host, at.store_port, at.token, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise WorkerLostError(f"rank {rank} found no leader: {error}") from error


def _make_group(
    store: Store, at: Rendezvous, rank: int, device: torch.device, timeout_s: float
) -> Group:
    timeout = timedelta(seconds=timeout_s)
    try:
        if device.type == "cuda":
            return nccl_group(store, rank, at.size, timeout=timeout)
        return gloo_group(store, rank, at.size, host=at.host, timeout=timeout)
    except RuntimeError as error:
        raise WorkerLostError(f"rank {rank} found no group of {at.size}: {error}") from error
