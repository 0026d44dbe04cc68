"""Several decode roles between which choices move, and a router that follows them.

Workers compute prompts themselves. `turn` is one step of each; KV moves only then, so that a test
decides what falls between two steps. Each choice of each request is written down once, position by
position, whoever ran it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from fakes_engine import VOCAB_SIZE, FakeExecutor
from fakes_pair import COMPAT, MemoryTransfers

from core.handoff import Handoff, Moved
from core.request import Attempt, AttemptDone, AttemptFailed, TokenEvent
from decode_worker.role import DecodeRole
from decode_worker.scheduler import DecodeLimits, DecodeScheduler
from engine.batch import flatten, sample_rows
from engine.intake import Limits
from engine.kv_lender import KVLender, WorkerIdentity
from engine.role import Cancel, Move, Submit
from kv_cache.block_pool import BlockPool
from kv_transfer.events import BlocksArrived

BLOCK_SIZE = 4


@dataclass
class _Receiver:
    """Pulls of one worker, each from whoever lends."""

    name: str
    movers: Movers

    def pull(self, handoff: Handoff, num_held_blocks: int) -> None:
        self.movers.pulled_by[handoff.transfer_id] = self.name
        self.movers.workers[handoff.worker_id].lent.pull(handoff, num_held_blocks)

    def abort(self, transfer_id: str) -> None:
        for worker in self.movers.workers.values():
            for event in worker.lent.to_decode:
                if event.transfer_id == transfer_id and isinstance(event, BlocksArrived):
                    event.release()
            worker.lent.abort(transfer_id)


@dataclass
class _Worker:
    name: str
    role: DecodeRole
    executor: FakeExecutor
    lent: MemoryTransfers
    num_prefilled: int = 0
    """Tokens computed in steps of several at once, or at the end of such."""


@dataclass
class _Request:
    attempt: Attempt
    output: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    finished: set[int] = field(default_factory=set)


class Movers:
    """`submit`, `move`, `turn`, and look at `output`."""

    def __init__(
        self,
        num_workers: int = 2,
        *,
        num_blocks: int = 64,
        max_num_seqs: int = 8,
        growth_tokens: int = 8,
        window: int | None = None,
    ) -> None:
        self.now = 0.0
        self.pulled_by: dict[str, str] = {}
        self.moved: list[Moved] = []
        self.num_failed = 0
        self._requests: dict[str, _Request] = {}
        self._requests_of: dict[str, str] = {}
        """The request of each attempt."""
        self._at: dict[str, str] = {}
        """The worker of each attempt that is under way."""
        self._numbers = count()
        self.workers: dict[str, _Worker] = {}
        for i in range(num_workers):
            name = f"d{i}"
            executor = FakeExecutor(num_blocks, BLOCK_SIZE)
            lent = MemoryTransfers(executor)
            pool = BlockPool(num_blocks, BLOCK_SIZE)
            identity = WorkerIdentity(name, f"epoch of {name}", "127.0.0.1:1", COMPAT)
            role = DecodeRole(
                pool,
                DecodeScheduler(
                    pool, DecodeLimits(max_num_seqs, max_num_seqs + 8, 8, growth_tokens, window)
                ),
                _Receiver(name, self),
                executor,
                Limits(200, VOCAB_SIZE, num_blocks, BLOCK_SIZE, 100),
                compat_key=COMPAT,
                eos_token_ids=(),
                lender=KVLender(identity, pool, lent, window=window, lease_s=30.0),
            )
            self.workers[name] = _Worker(name, role, executor, lent)

    def submit(self, attempt: Attempt, worker: str = "d0") -> None:
        self._requests[attempt.transfer_id] = _Request(attempt)
        self._submit(attempt.transfer_id, attempt, None, worker)

    def output(self, request: str, choice: int = 0) -> list[int]:
        return self._requests[request].output[choice]

    def is_over(self, request: str) -> bool:
        made = self._requests[request]
        return made.finished == set(made.attempt.choices)

    def move_all_from(self, worker: str) -> None:
        """As when the worker drains."""
        for attempt, at in list(self._at.items()):
            if at == worker:
                self.workers[worker].role.handle(Move(attempt), self.now)

    def cancel(self, request: str) -> None:
        """The client leaves, and the router tells everybody who may know of its attempts."""
        made = self._requests[request]
        made.finished |= set(made.attempt.choices)
        for attempt in [a for a, r in self._requests_of.items() if r == request]:
            for worker in self.workers.values():
                worker.role.handle(Cancel(attempt), self.now)

    def break_links(self) -> None:
        for worker in self.workers.values():
            worker.lent.break_link()

    def expire_leases(self) -> None:
        for worker in self.workers.values():
            worker.lent.expire_unpulled()

    def turn(self, *, kv_moves: bool = True) -> None:
        self.now += 1
        for worker in self.workers.values():
            self._deliver(worker)
            self._step(worker)
            for event in worker.role.take_events():
                self._note(event, worker.name)
        if kv_moves:
            for worker in self.workers.values():
                worker.lent.pump()

    def run(self, max_turns: int = 2_000) -> None:
        """Turns until nothing is left."""
        for _ in range(max_turns):
            self.turn()
            if not any(w.role.num_unfinished for w in self.workers.values()):
                return
        raise AssertionError("work is left after all turns: something waits for ever")

    def check_whole(self) -> None:
        for worker in self.workers.values():
            pool = worker.role.pool
            pool.check_integrity()
            assert pool.holders() == []
            assert pool.num_available == pool.num_blocks
            assert worker.lent.unreleased == 0

    def _submit(self, request: str, attempt: Attempt, handoff: Handoff | None, worker: str) -> None:
        self._requests_of[attempt.transfer_id] = request
        self._at[attempt.transfer_id] = worker
        self.workers[worker].role.handle(Submit(attempt, handoff), self.now)

    def _deliver(self, worker: _Worker) -> None:
        ended, worker.lent.to_prefill = worker.lent.to_prefill, []
        for lease_ended in ended:
            worker.role.handle(lease_ended, self.now)
        for lender in self.workers.values():
            mine = [
                e for e in lender.lent.to_decode if self.pulled_by[e.transfer_id] == worker.name
            ]
            lender.lent.to_decode = [e for e in lender.lent.to_decode if e not in mine]
            for event in mine:
                worker.role.handle(event, self.now)

    def _step(self, worker: _Worker) -> None:
        role = worker.role
        plan = role.schedule(self.now)
        role.pool.check_integrity()
        if plan is None:
            return
        for chunk in plan.chunks:
            decodes = chunk.num_tokens == 1 and chunk.sequence.num_output_tokens > 0
            worker.num_prefilled += 0 if decodes else chunk.num_tokens
        step = flatten(plan, BLOCK_SIZE)
        role.complete(plan, worker.executor.execute(step, sample_rows(plan, ())), self.now)
        role.pool.check_integrity()

    def _note(self, event: object, worker: str) -> None:
        match event:
            case TokenEvent():
                request = self._requests[self._requests_of[event.transfer_id]]
                output = request.output[event.choice]
                assert event.position == len(output), "a token was lost or came twice"
                output.append(event.token_id)
                if event.finish_reason is not None:
                    request.finished.add(event.choice)
            case Moved():
                self.moved.append(event)
                self._follow(event, worker)
            case AttemptFailed():
                self.num_failed += 1
                del self._at[event.transfer_id]
                self._again(self._requests_of[event.transfer_id], event.transfer_id, worker)
            case AttemptDone():
                del self._at[event.transfer_id]

    def _follow(self, moved: Moved, worker: str) -> None:
        name = self._requests_of[moved.transfer_id]
        request = self._requests[name]
        if moved.handoff is None:
            self._give_up_kv(moved.transfer_id)
            self._restart(name, moved.choices, worker)
            return
        (choice,) = moved.choices
        if choice in request.finished:
            self.workers[worker].role.handle(Cancel(moved.handoff.transfer_id), self.now)
            return
        tokens = (*request.attempt.token_ids, *request.output[choice])
        follow = replace(
            request.attempt,
            transfer_id=moved.handoff.transfer_id,
            token_ids=tokens[:-1],
            choices=(choice,),
        )
        self._submit(name, follow, moved.handoff, self._beside(worker))

    def _again(self, name: str, transfer_id: str, worker: str) -> None:
        """A failed attempt: what it ran goes on elsewhere, computed anew."""
        self._give_up_kv(transfer_id)
        suffix = transfer_id.rpartition("+")[2]
        known = self._requests[name].attempt.choices
        choices = (int(suffix),) if "+" in transfer_id else known
        self._restart(name, choices, worker)

    def _give_up_kv(self, transfer_id: str) -> None:
        """Nobody will pull what may be kept for this attempt, which is over."""
        if "+" in transfer_id:
            for worker in self.workers.values():
                worker.role.handle(Cancel(transfer_id), self.now)

    def _restart(self, name: str, choices: Sequence[int], worker: str) -> None:
        request = self._requests[name]
        for choice in choices:
            if choice not in request.finished:
                tokens = (*request.attempt.token_ids, *request.output[choice])
                transfer_id = f"{name}.{next(self._numbers)}+{choice}"
                again = replace(
                    request.attempt, transfer_id=transfer_id, token_ids=tokens, choices=(choice,)
                )
                self._submit(name, again, None, self._beside(worker))

    def _beside(self, worker: str) -> str:
        names = list(self.workers)
        return names[(names.index(worker) + 1) % len(names)]
