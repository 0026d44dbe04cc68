"""One prefill and one decode role with their real schedulers and pools, stepped by hand.

Computation is `fakes_engine.FakeExecutor`; KV moves through `MemoryTransfers`, which obeys the
contract of `kv_transfer` but moves only when told, so that a test decides every interleaving.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fakes_engine import VOCAB_SIZE, FakeExecutor

from core.handoff import Handoff, Started
from core.request import (
    Attempt,
    AttemptDone,
    AttemptFailed,
    Pinned,
    PinWish,
    PromptLogprobs,
    SamplingParams,
    TokenEvent,
)
from decode_worker.role import DecodeRole
from decode_worker.scheduler import DecodeLimits, DecodeScheduler
from engine.batch import flatten, sample_rows
from engine.intake import Limits
from engine.kv_lender import KVLender, WorkerIdentity
from engine.role import Cancel, Role, Submit
from kv_cache.block_pool import BlockPool
from kv_transfer.events import (
    BlocksArrived,
    FirstToken,
    LeaseEnded,
    LeaseOutcome,
    PullClosed,
    PullEvent,
    PullFailed,
    PullNeedless,
)
from prefill_worker.role import PrefillRole
from prefill_worker.scheduler import PrefillScheduler

EOS = 2
COMPAT = "same"


def attempt(
    transfer_id: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 4,
    choices: tuple[int, ...] = (0,),
    emitted: Sequence[int] = (),
    seed: int = 7,
    priority: int = 0,
    deadline_s: float = 1e6,
    prompt_logprobs: int | None = None,
    pins: PinWish | None = None,
) -> Attempt:
    return Attempt(
        request_id=f"r-{transfer_id}",
        transfer_id=transfer_id,
        model="fake",
        token_ids=(*prompt, *emitted),
        num_prompt_tokens=len(prompt),
        choices=choices,
        sampling=SamplingParams(max_tokens=max_tokens, seed=seed, prompt_logprobs=prompt_logprobs),
        deadline_s=deadline_s,
        priority=priority,
        pins=pins,
    )


@dataclass(slots=True)
class _Transfer:
    num_blocks: int
    next_block: int
    granted: dict[int, int] = field(default_factory=dict)
    first_tokens: tuple[FirstToken, ...] | None = None
    pulling: bool = False


class MemoryTransfers:
    """Both halves of a link in one object. `pump` moves everything that can move."""

    def __init__(self, prefill: FakeExecutor) -> None:
        self._prefill = prefill
        self._transfers: dict[str, _Transfer] = {}
        self._finished: set[str] = set()
        self.to_prefill: list[LeaseEnded] = []
        self.to_decode: list[PullEvent] = []
        self.unreleased = 0
        self.pulls: list[tuple[str, int]] = []

    def offer(
        self, transfer_id: str, *, num_blocks: int, first_block: int, deadline: float
    ) -> None:
        assert transfer_id not in self._transfers
        self._transfers[transfer_id] = _Transfer(num_blocks, first_block)

    def grant(self, transfer_id: str, first_block: int, blocks: Sequence[int]) -> None:
        transfer = self._transfers.get(transfer_id)
        if transfer is not None:
            transfer.granted |= {first_block + i: b for i, b in enumerate(blocks)}

    def close(self, transfer_id: str, first_tokens: Sequence[FirstToken]) -> None:
        if transfer_id in self._transfers:
            self._transfers[transfer_id].first_tokens = tuple(first_tokens)

    def finish(self, transfer_id: str) -> None:
        self._finished.add(transfer_id)
        self._give_up(transfer_id, PullNeedless(transfer_id), LeaseOutcome.FINISHED)

    def cancel(self, transfer_id: str) -> None:
        failed = PullFailed(transfer_id, "aborted", "cancelled by P")
        self._give_up(transfer_id, failed, LeaseOutcome.CANCELLED)

    def pull(self, handoff: Handoff, num_held_blocks: int) -> None:
        self.pulls.append((handoff.transfer_id, num_held_blocks))
        transfer = self._transfers.get(handoff.transfer_id)
        if handoff.transfer_id in self._finished:
            self.to_decode.append(PullNeedless(handoff.transfer_id))
            return
        if transfer is None:
            self.to_decode.append(PullFailed(handoff.transfer_id, "unknown_transfer", "unknown"))
            return
        transfer.pulling = True
        transfer.next_block = max(transfer.next_block, num_held_blocks)

    def abort(self, transfer_id: str) -> None:
        self.to_decode = [e for e in self.to_decode if e.transfer_id != transfer_id]
        self._end(transfer_id, LeaseOutcome.ABORTED)

    def break_link(self) -> None:
        """Everything under way is lost, on both sides."""
        for transfer_id, transfer in list(self._transfers.items()):
            if transfer.pulling:
                self.to_decode.append(PullFailed(transfer_id, "peer_lost", "the link broke"))
                self._end(transfer_id, LeaseOutcome.PEER_LOST)

    def expire_unpulled(self) -> None:
        for transfer_id, transfer in list(self._transfers.items()):
            if not transfer.pulling:
                self._end(transfer_id, LeaseOutcome.EXPIRED)

    def pump(self) -> None:
        for transfer_id, transfer in list(self._transfers.items()):
            if transfer.pulling:
                self._send(transfer_id, transfer)

    def _give_up(self, transfer_id: str, told: PullEvent, outcome: LeaseOutcome) -> None:
        transfer = self._transfers.get(transfer_id)
        if transfer is not None:
            if transfer.pulling:
                self.to_decode.append(told)
            self._end(transfer_id, outcome)

    def _send(self, transfer_id: str, transfer: _Transfer) -> None:
        while transfer.next_block in transfer.granted:
            block = transfer.granted[transfer.next_block]
            staging = self._prefill.pack([block])
            self.unreleased += 1
            arrived = BlocksArrived(transfer_id, transfer.next_block, 1, staging, self._release)
            self.to_decode.append(arrived)
            transfer.next_block += 1
        if transfer.first_tokens is not None and transfer.next_block == transfer.num_blocks:
            self.to_decode.append(PullClosed(transfer_id, transfer.first_tokens, 0.0))
            self._end(transfer_id, LeaseOutcome.COMPLETED)

    def _release(self) -> None:
        self.unreleased -= 1

    def _end(self, transfer_id: str, outcome: LeaseOutcome) -> None:
        if self._transfers.pop(transfer_id, None) is not None:
            self.to_prefill.append(LeaseEnded(transfer_id, outcome))


class Pair:
    """P and D, their pools, and what they said. `prefill_step` and `decode_step` are one turn
    each.
    """

    def __init__(
        self,
        *,
        block_size: int = 4,
        prefill_blocks: int = 64,
        decode_blocks: int = 64,
        chunk_tokens: int = 8,
        max_num_seqs: int = 8,
        growth_tokens: int = 8,
        caching: bool = True,
        window: int | None = None,
        max_model_len: int = 200,
        eos: tuple[int, ...] = (),
        max_pinned: int | None = None,
    ) -> None:
        self.now = 0.0
        self.eos = eos
        self.block_size = block_size
        self.prefill_executor = FakeExecutor(prefill_blocks, block_size)
        self.decode_executor = FakeExecutor(decode_blocks, block_size)
        self.transfers = MemoryTransfers(self.prefill_executor)
        identity = WorkerIdentity("p0", "e0", "127.0.0.1:1", COMPAT)
        pool = BlockPool(
            prefill_blocks,
            block_size,
            enable_prefix_caching=caching,
            max_pinned_blocks=max_pinned,
        )
        self.prefill = PrefillRole(
            pool,
            PrefillScheduler(
                pool, chunk_tokens=chunk_tokens, max_num_seqs=max_num_seqs, window=window
            ),
            KVLender(identity, pool, self.transfers, window=window, lease_s=30.0),
            Limits(max_model_len, VOCAB_SIZE, prefill_blocks, block_size, 100),
            compat_key=COMPAT,
            eos_token_ids=eos,
        )
        pool = BlockPool(
            decode_blocks,
            block_size,
            enable_prefix_caching=caching,
            max_pinned_blocks=max_pinned,
        )
        bounds = DecodeLimits(
            max_num_seqs, max_num_seqs + chunk_tokens, chunk_tokens, growth_tokens, window
        )
        self.decode = DecodeRole(
            pool,
            DecodeScheduler(pool, bounds),
            self.transfers,
            self.decode_executor,
            Limits(max_model_len, VOCAB_SIZE, decode_blocks, block_size, 100),
            compat_key=COMPAT,
            eos_token_ids=eos,
        )
        self.started: dict[str, Started] = {}
        self.scores: dict[str, list[PromptLogprobs]] = defaultdict(list)
        self.pinned: dict[str, Pinned] = {}
        self.output: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.finished: dict[tuple[str, int], str] = {}
        self.failed: dict[str, AttemptFailed] = {}
        self.done: list[str] = []
        self._submitted: dict[str, Attempt] = {}

    def submit(self, attempt: Attempt) -> None:
        """As the router does: to P first; to D when P has started."""
        self.prefill.handle(Submit(attempt), self.now)
        self._submitted[attempt.transfer_id] = attempt

    def submit_to_decode(self, attempt: Attempt) -> None:
        """Combined mode: D computes the prompt itself."""
        self.decode.handle(Submit(attempt), self.now)

    def cancel(self, transfer_id: str, choices: tuple[int, ...] = ()) -> None:
        self.prefill.handle(Cancel(transfer_id, choices), self.now)
        self.decode.handle(Cancel(transfer_id, choices), self.now)

    def prefill_step(self) -> bool:
        ended, self.transfers.to_prefill = self.transfers.to_prefill, []
        for lease_ended in ended:
            self.prefill.handle(lease_ended, self.now)
        stepped = self._step(self.prefill, self.prefill_executor)
        for event in self.prefill.take_events():
            self._note(event)
            if isinstance(event, Started):
                assert event.handoff is not None
                message = Submit(self._submitted[event.transfer_id], event.handoff)
                self.decode.handle(message, self.now)
        return stepped

    def decode_step(self) -> bool:
        arrived, self.transfers.to_decode = self.transfers.to_decode, []
        for pull_event in arrived:
            self.decode.handle(pull_event, self.now)
        stepped = self._step(self.decode, self.decode_executor)
        for event in self.decode.take_events():
            self._note(event)
        return stepped

    def run(self, max_turns: int = 2_000) -> None:
        """Turns of both until nothing is left; fails if that doesn't come."""
        for _ in range(max_turns):
            self.now += 1.0
            self.prefill_step()
            self.transfers.pump()
            self.decode_step()
            if self.prefill.num_unfinished == 0 and self.decode.num_unfinished == 0:
                return
        raise AssertionError("work is left after all turns: something waits for ever")

    def check_whole(self) -> None:
        """Nothing is held, nothing leaked, every staging slot released."""
        for role in (self.prefill, self.decode):
            role.pool.check_integrity()
            assert role.pool.holders() == []
            assert role.pool.num_available == role.pool.num_blocks
        assert self.transfers.unreleased == 0

    def _step(self, role: Role, executor: FakeExecutor) -> bool:
        plan = role.schedule(self.now)
        role.pool.check_integrity()
        if plan is None:
            return False
        step = flatten(plan, self.block_size)
        sampled = executor.execute(step, sample_rows(plan, self.eos))
        role.complete(plan, sampled, self.now)
        role.pool.check_integrity()
        return True

    def _note(self, event: object) -> None:
        match event:
            case Started():
                self.started[event.transfer_id] = event
            case PromptLogprobs():
                assert not any(key[0] == event.transfer_id for key in self.output), "too late"
                self.scores[event.transfer_id].append(event)
            case Pinned():
                assert not any(key[0] == event.transfer_id for key in self.output), "too late"
                self.pinned[event.transfer_id] = event
            case TokenEvent():
                key = (event.transfer_id, event.choice)
                assert key not in self.finished, "a token after the last"
                self.output[key].append(event.token_id)
                if event.finish_reason is not None:
                    self.finished[key] = event.finish_reason.value
            case AttemptFailed():
                self.failed.setdefault(event.transfer_id, event)  # the other leg may follow
            case AttemptDone():
                self.done.append(event.transfer_id)
