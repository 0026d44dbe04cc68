"""All workers the router knows, the choice among them, and who waits for that to change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from core.load import LoadReport
from router.fleet.leg_event import OnLegEnd
from router.fleet.policy import (
    Demand,
    NoPair,
    PolicySettings,
    WorkerView,
    choose_decode,
    choose_pair,
)
from router.fleet.policy import Pair as ChosenPair
from router.fleet.prefix_map import PrefixMap
from router.fleet.sessions import SessionSettings, WorkerSession
from router.fleet.standing import Standing
from router.fleet.worker_pair import WorkerPair
from state.store import Member

log = logging.getLogger(__name__)


class Fleet:
    """Owns one session for each incarnation of a worker. Lives on one event loop."""

    def __init__(
        self,
        session_settings: SessionSettings,
        policy: PolicySettings,
        prefixes: PrefixMap,
        on_leg_end: OnLegEnd,
    ) -> None:
        self._session_settings = session_settings
        self._on_leg_end = on_leg_end
        self._policy = policy
        self._prefixes = prefixes
        self._sessions: dict[str, WorkerSession] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watchers: dict[Callable[[], None], None] = {}
        """In order of their coming: who has waited longest is the first to choose."""

    def reconcile(self, members: Iterable[Member]) -> None:
        """Opens a session to every new incarnation, and lets the others finish what they have.

        An incarnation that another one of the same worker id replaced is closed at once: its
        process is gone, or about to be.
        """
        present = {m.epoch: m for m in members}
        current_ids = {m.worker_id for m in present.values()}
        for epoch, session in list(self._sessions.items()):
            member = present.get(epoch)
            session.retired = member is None
            if member is not None:
                session.member = member
            elif session.member.worker_id in current_ids or not session.num_attempts:
                self._close(epoch)
        for epoch, member in present.items():
            if epoch not in self._sessions:
                self._open(epoch, member)
        self._fit_prefixes()
        self._changed()

    def views(self) -> list[WorkerView]:
        """Every worker that could be given work, as the policy sees it."""
        views = (session.view() for session in self._sessions.values())
        return [view for view in views if view is not None]

    def loads(self) -> Iterator[tuple[Member, LoadReport]]:
        """The last report of every connected worker."""
        for session in self._sessions.values():
            if session.connected:
                yield session.member, session.load

    def standings(self) -> list[Standing]:
        """Every worker there is a session to, whether or not it can be given work."""
        return [
            Standing(s.member, s.load, s.connected, s.retired, s.num_attempts)
            for s in self._sessions.values()
        ]

    def num_cached_blocks(self, hashes: list[bytes]) -> int:
        """Most of a prompt's blocks that one worker probably holds."""
        return max(self._prefixes.matches(hashes).values(), default=0)

    def choose(self, demand: Demand, hashes: list[bytes]) -> WorkerPair | NoPair:
        """The best pair now; its workers are remembered as holders of the prompt's blocks."""
        chosen = choose_pair(self.views(), demand, self._prefixes.matches(hashes), self._policy)
        if isinstance(chosen, NoPair):
            return chosen
        for view in (chosen.prefill, chosen.decode):
            if view is not None:
                self._prefixes.record(hashes, view.epoch)
        return WorkerPair(
            prefill=self._sessions[chosen.prefill.epoch] if chosen.prefill else None,
            decode=self._sessions[chosen.decode.epoch] if chosen.decode else None,
        )

    def choose_decode(
        self, demand: Demand, hashes: list[bytes], compat_key: str
    ) -> WorkerSession | None:
        """The best worker now to go on with KV of this key that lies elsewhere, if there is one."""
        chosen = choose_decode(self.views(), demand, compat_key, self._policy)
        if chosen is None:
            return None
        self._prefixes.record(hashes, chosen.epoch)
        return self._sessions[chosen.epoch]

    def readiness(self) -> NoPair | None:
        """None when a request of any kind would find a pair now; else why it would not."""
        probe = Demand(num_tokens=1, num_new_tokens=2)
        chosen = choose_pair(self.views(), probe, {}, self._policy)
        return None if isinstance(chosen, ChosenPair) else chosen

    def watch(self, wake: Callable[[], None]) -> None:
        """Calls `wake` whenever a choice might come out differently, until `unwatch`; after those
        who came before."""
        self._watchers[wake] = None

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._watchers.pop(wake, None)

    async def close(self) -> None:
        """Ends every session and waits until they are gone."""
        tasks = list(self._tasks.values())
        for epoch in list(self._sessions):
            self._close(epoch)
        if tasks:
            await asyncio.wait(tasks)

    def _open(self, epoch: str, member: Member) -> None:
        session = WorkerSession(member, self._session_settings, self._changed, self._on_leg_end)
        self._sessions[epoch] = session
        task = asyncio.create_task(session.run(), name=f"session {member.worker_id}")
        self._tasks[epoch] = task
        task.add_done_callback(lambda ended: self._ended(epoch, ended))

    def _close(self, epoch: str) -> None:
        self._sessions.pop(epoch).close()

    def _ended(self, epoch: str, task: asyncio.Task[None]) -> None:
        """A session that broke on a bug of ours is opened anew at the next `reconcile`."""
        self._tasks.pop(epoch, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("session of epoch %s broke", epoch, exc_info=task.exception())
            self._sessions.pop(epoch, None)

    def _fit_prefixes(self) -> None:
        """Nobody needs to remember more blocks than there are, once all have said how many."""
        pools = [session.num_blocks for session in self._sessions.values()]
        if pools and all(pools):
            self._prefixes.fit(sum(pools))

    def _changed(self) -> None:
        for wake in tuple(self._watchers):
            wake()
