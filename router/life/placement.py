"""Where the attempts of one request go, and what each of them asks for.

A fresh attempt asks for the prompt, or for prompt + emitted, on a pair (P, D). One that follows KV
which already lies on a worker asks for all tokens but the last, and needs a D only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from core.clock import Clock
from core.handoff import Handoff
from core.request import Attempt, PinWish
from kv_cache.block_hash import block_hashes, root_hash
from router.fleet.fleet import Fleet
from router.fleet.policy import Demand, NoPair
from router.fleet.sessions import WorkerSession
from router.fleet.worker_pair import WorkerPair
from router.identifiers import new_transfer_id
from router.life.admitted_request import AdmittedRequest
from router.life.choice import Choice
from router.pinning import pinned_tokens


class Placement:
    """Asks the fleet on behalf of one request; remembers which workers failed it."""

    def __init__(
        self, request: AdmittedRequest, fleet: Fleet, clock: Clock, *, block_size: int
    ) -> None:
        self._request = request
        self._fleet = fleet
        self._clock = clock
        self._block_size = block_size
        self._excluded: set[str] = set()
        self._root = root_hash(request.model, request.cache_salt)
        # Kept, since a request that waits for a worker asks again with every load report.
        self._prompt_hashes = block_hashes(self._root, request.token_ids, block_size)

    @property
    def num_tokens_to_compute(self) -> int:
        """Prompt tokens that no worker is thought to have cached; at least one."""
        num_cached = self._fleet.num_cached_blocks(self._prompt_hashes) * self._block_size
        return max(1, len(self._request.token_ids) - num_cached)

    def exclude(self, session: WorkerSession) -> None:
        """This incarnation failed the request: others, if there are any, are the better bet."""
        self._excluded.add(session.member.epoch)

    def watch(self, wake: Callable[[], None]) -> None:
        """Calls `wake` whenever an answer of ours might come out differently, until `unwatch`."""
        self._fleet.watch(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._fleet.unwatch(wake)

    def pair(self, choices: Sequence[Choice]) -> WorkerPair | NoPair:
        """Workers for an attempt of these choices, which have emitted the same tokens: none, or
        those of the only one."""
        hashes = self._hashes(self._token_ids(choices[0]))
        return self._fleet.choose(self._demand(choices), hashes)

    def could_follow(self, choices: Sequence[Choice], compat_key: str) -> bool:
        """Whether there is a worker now to go on with KV of this key that lies elsewhere."""
        return self._fleet.choose_decode(self._demand(choices), [], compat_key) is not None

    def decode_worker(self, choices: Sequence[Choice], compat_key: str) -> WorkerSession | None:
        """The worker that is to go on with such KV; None if there is none now."""
        hashes = self._hashes(self._token_ids(choices[0]))
        return self._fleet.choose_decode(self._demand(choices), hashes, compat_key)

    def attempt(self, choices: Sequence[Choice], pair: WorkerPair) -> Attempt:
        """All tokens that are known, to be computed by this pair."""
        pins = self._pins(pair.prefill or pair.decode)
        return self._attempt(new_transfer_id(), self._token_ids(choices[0]), choices, pins)

    def continuation(self, choice: Choice, handoff: Handoff) -> Attempt:
        """The tokens whose KV the handoff is of: the last one comes with the pull."""
        token_ids = self._token_ids(choice)[:-1]
        assert len(token_ids) == handoff.num_tokens, "the KV is of other tokens"
        return self._attempt(handoff.transfer_id, token_ids, [choice])

    def missing_tokens(self, choice: Choice, handoff: Handoff) -> int:
        """How many tokens of those that the handoff was made after have not come in yet."""
        return handoff.num_tokens + 1 - len(self._request.token_ids) - len(choice.token_ids)

    def _token_ids(self, choice: Choice) -> tuple[int, ...]:
        return (*self._request.token_ids, *choice.token_ids)

    def _demand(self, choices: Sequence[Choice]) -> Demand:
        num_emitted = len(choices[0].token_ids)
        return Demand(
            num_tokens=len(self._request.token_ids) + num_emitted,
            num_new_tokens=self._request.sampling.max_tokens - num_emitted,
            num_choices=len(choices),
            excluded=frozenset(self._excluded),
        )

    def _hashes(self, token_ids: tuple[int, ...]) -> list[bytes]:
        known = self._prompt_hashes
        return known + block_hashes(self._root, token_ids, self._block_size, known)

    def _pins(self, worker: WorkerSession | None) -> PinWish | None:
        """The owner's limit here is what it has not pinned elsewhere."""
        wish = self._request.pins
        if wish is None or wish.max_owned_tokens is None or worker is None:
            return wish
        elsewhere = pinned_tokens(self._fleet.views(), wish.owner, but=worker.member.epoch)
        return replace(wish, max_owned_tokens=max(0, wish.max_owned_tokens - elsewhere))

    def _attempt(
        self,
        transfer_id: str,
        token_ids: tuple[int, ...],
        choices: Sequence[Choice],
        pins: PinWish | None = None,
    ) -> Attempt:
        request = self._request
        return Attempt(
            request_id=request.request_id,
            transfer_id=transfer_id,
            model=request.model,
            token_ids=token_ids,
            num_prompt_tokens=len(request.token_ids),
            choices=tuple(c.index for c in choices),
            sampling=request.sampling,
            deadline_s=max(0.0, request.deadline - self._clock.now()),
            priority=request.priority,
            cache_salt=request.cache_salt,
            tenant=request.tenant,
            pins=pins,
            grammar=request.grammar,
            trace_context=request.trace_context_of(transfer_id),
        )
