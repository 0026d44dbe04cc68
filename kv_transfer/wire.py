"""Control messages of a KV link: our words <-> protos/kv_transfer.proto."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.compat import PROTOCOL_VERSION
from kv_transfer.events import FirstToken
from kv_transfer.leases import Closing, Piece
from kv_transfer.link import Rendezvous
from kv_transfer.staging import StagingLimits
from protos import kv_transfer_pb2 as pb


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """One worker as its links see it. `heads_by_rank` lists each rank's global KV head ids."""

    worker_id: str
    epoch: str
    compat_key: str
    heads_by_rank: tuple[tuple[int, ...], ...]


def hello(
    link_id: str,
    identity: LinkIdentity,
    limits: StagingLimits,
    *,
    prefill_epoch: str,
    verify: bool,
) -> pb.LinkRequest:
    return pb.LinkRequest(
        hello=pb.LinkHello(
            link_id=link_id,
            decode_worker_id=identity.worker_id,
            decode_epoch=identity.epoch,
            expected_prefill_epoch=prefill_epoch,
            decode_tp_size=len(identity.heads_by_rank),
            protocol_version=PROTOCOL_VERSION,
            compat_key=identity.compat_key,
            decode_heads=_heads_to_wire(identity.heads_by_rank),
            max_message_bytes=limits.max_message_bytes,
            max_inflight_messages=limits.max_inflight_messages,
            verify=verify,
        )
    )


def welcome(
    identity: LinkIdentity,
    limits: StagingLimits,
    token: str,
    hosts: Sequence[Rendezvous | None],
) -> pb.LinkEvent:
    """`hosts`: where each of P's ranks waits; None: it has no part in the link."""
    there = [host for host in hosts if host is not None]
    return pb.LinkEvent(
        welcome=pb.LinkWelcome(
            token=token,
            prefill_ranks=[
                pb.Rendezvous()
                if host is None
                else pb.Rendezvous(host=host.host, port=host.port, local=host.local)
                for host in hosts
            ],
            prefill_tp_size=len(identity.heads_by_rank),
            max_message_bytes=limits.max_message_bytes,
            max_inflight_messages=limits.max_inflight_messages,
            backend=there[0].backend,
            prefill_heads=_heads_to_wire(identity.heads_by_rank),
        )
    )


def refused(transfer_id: str, reason: str, message: str) -> pb.LinkEvent:
    return pb.LinkEvent(refused=pb.Refused(transfer_id=transfer_id, reason=reason, message=message))


def message(piece: Piece, size_bytes: int, checksums: Sequence[int]) -> pb.LinkEvent:
    return pb.LinkEvent(
        message=pb.Message(
            seq=piece.seq,
            transfer_id=piece.transfer_id,
            first_block=piece.first_block,
            num_blocks=len(piece.blocks),
            size_bytes=size_bytes,
            checksums=checksums,
        )
    )


def closing(event: Closing, *, now: float) -> pb.LinkEvent:
    tokens = [
        pb.FirstToken(choice=t.choice, token_id=t.token_id, finished=t.finished)
        for t in event.first_tokens
    ]
    return pb.LinkEvent(
        close=pb.Close(
            transfer_id=event.transfer_id,
            first_tokens=tokens,
            chunk_end_age_s=now - event.closed_at,
        )
    )


def first_tokens(message: pb.Close) -> tuple[FirstToken, ...]:
    return tuple(FirstToken(t.choice, t.token_id, t.finished) for t in message.first_tokens)


def hosts(message: pb.LinkWelcome) -> tuple[Rendezvous, ...]:
    """Where each of P's ranks waits."""
    return tuple(
        Rendezvous(each.host, each.port, message.backend, each.local)
        for each in message.prefill_ranks
    )


def limits(message: pb.LinkHello | pb.LinkWelcome) -> StagingLimits:
    return StagingLimits(message.max_message_bytes, message.max_inflight_messages)


def heads(ranks: Iterable[pb.RankHeads]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(rank.heads) for rank in ranks)


def _heads_to_wire(heads_by_rank: Sequence[Sequence[int]]) -> list[pb.RankHeads]:
    return [pb.RankHeads(heads=heads) for heads in heads_by_rank]
