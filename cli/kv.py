"""`tandem kv`: who holds which KV blocks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import ConfigFile, RunId, Settings, load
from cli.workers import WorkerAt, find_workers

if TYPE_CHECKING:
    from protos import worker_pb2
    from protos.secure_grpc import PeerCertificates

EXIT_NOT_SOUND = 1

kv_app = typer.Typer(no_args_is_help=True, help="Look into the KV caches of the workers.")


@kv_app.callback()
def kv() -> None:
    """Keeps `audit` a verb of its own although it is the only one."""


@kv_app.command()
def audit(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.0, metavar="S", help="Longest wait for each worker's answer.")
    ] = 5.0,
    run: RunId = None,
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Show every worker's KV blocks by state and holder, who has some pinned, and whether its books
    balance.

    Asks the workers of the newest `tandem serve` here, or with --set state.backend=redis all that
    are announced there. The states' counts must add up to the pool, and what the pool keeps count
    of must agree with who holds what.

    The exit status is 1 if a worker's books don't balance, or one doesn't answer in time, or there
    is none.
    """
    config = load(file, settings)

    async def ask() -> list[WorkerBooks]:
        from protos.certificate_files import peer_certificates

        certificates = peer_certificates(config.tls)
        workers = await find_workers(config, run)
        return await asyncio.gather(*(books_of(each, timeout, certificates) for each in workers))

    found = asyncio.run(ask())
    sound = bool(found) and all(each.sound for each in found)
    if as_json:
        typer.echo(json.dumps({"sound": sound, "workers": [each.as_dict() for each in found]}))
    else:
        typer.echo(audit_text(found))
    if not sound:
        raise typer.Exit(EXIT_NOT_SOUND)


@dataclass(frozen=True, slots=True)
class WorkerBooks:
    """What a worker said of its blocks, or why it said nothing."""

    worker: WorkerAt
    reply: worker_pb2.AuditKvReply | None
    error: str = ""

    @property
    def problem(self) -> str:
        """Empty if the books balance."""
        if self.reply is None:
            return self.error
        total = sum(self.reply.blocks_by_state.values())
        if total != self.reply.num_blocks:
            return f"the states add up to {total} blocks, the pool has {self.reply.num_blocks}"
        return "" if self.reply.consistent else self.reply.problem or "the books are inconsistent"

    @property
    def sound(self) -> bool:
        return not self.problem

    def as_dict(self) -> dict[str, Any]:
        """For machines; without an answer there are no counts."""
        known: dict[str, Any] = {}
        if self.reply is not None:
            known = {
                "role": self.reply.role,
                "epoch": self.reply.epoch,
                "num_blocks": self.reply.num_blocks,
                "blocks_by_state": dict(self.reply.blocks_by_state),
                "pinned_blocks": dict(self.reply.pinned_blocks),
                "holders": [
                    {"kind": holder.kind, "id": holder.id, "num_blocks": holder.num_blocks}
                    for holder in _sorted_holders(self.reply)
                ],
            }
        return {
            "worker_id": self.worker.worker_id,
            "address": self.worker.address,
            "sound": self.sound,
            "problem": self.problem,
            **known,
        }


async def books_of(
    worker: WorkerAt, timeout_s: float, certificates: PeerCertificates = None
) -> WorkerBooks:
    """One worker's answer; whatever goes wrong is part of the result."""
    import grpc.aio

    from protos import worker_pb2, worker_pb2_grpc
    from protos.secure_grpc import open_channel

    async with open_channel(worker.address, certificates) as channel:
        stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
        try:
            reply = await stub.AuditKv(worker_pb2.AuditKvRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return WorkerBooks(worker, None, f"no answer ({error.code().name}): {error.details()}")
    if reply.worker_id != worker.worker_id:
        return WorkerBooks(worker, None, f"{reply.worker_id} answers at its address")
    return WorkerBooks(worker, reply)


def audit_text(found: Iterable[WorkerBooks]) -> str:
    """All workers, for a person."""
    return "\n\n".join(map(_worker_text, found)) or "there are no workers"


def _worker_text(books: WorkerBooks) -> str:
    reply = books.reply
    if reply is None:
        return f"{books.worker.worker_id}  {books.worker.address}  {books.problem}"
    states = reply.blocks_by_state
    lines = [
        f"{reply.worker_id}  {reply.role}  {books.worker.address}  {reply.num_blocks} blocks",
        "  " + "  ".join(f"{state} {states[state]}" for state in _STATES if state in states),
    ]
    lines += [
        f"  {holder.kind:<8} {holder.num_blocks:>6}  {holder.id}"
        for holder in _sorted_holders(reply)
    ]
    lines += [
        f"  {'pinned':<8} {num_blocks:>6}  {owner or 'for everybody'}"
        for owner, num_blocks in sorted(reply.pinned_blocks.items())
    ]
    return "\n".join([*lines, f"  {books.problem or 'the books balance'}"])


_STATES = ("importing", "leased", "running", "cached", "free")


def _sorted_holders(reply: worker_pb2.AuditKvReply) -> list[worker_pb2.AuditKvReply.Holder]:
    """By kind, the largest first."""
    return sorted(reply.holders, key=lambda each: (each.kind, -each.num_blocks, each.id))
