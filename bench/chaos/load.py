"""Clients without pause: each visit is sent to a router until it has an answer, and judged.

a router, in turn -> answer  -> compared with the undisturbed one
                  -> 503/429 that says when to come back: refused, tried again then
                  -> connection gone with a router that a fault took: tried at another router
                  -> anything else, or no end within the deadline: lost
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bench.chaos.answer import (
    Answer,
    AnswerReader,
    Difference,
    Flaw,
    difference,
    partial_difference,
)
from bench.chaos.asks import Ask, Visit
from bench.chaos.house import Door, House
from bench.chaos.verdict import Outcome, Result
from bench.client import ServerError
from bench.http_connection import ConnectionPool, Response, parse_origin
from bench.http_response import ProtocolError
from bench.progress import Progress
from core.clock import Clock

DEADLINE_S = 300.0
"""Of one try: longer than all deadlines of the house in a row."""
_MAX_REFUSALS = 30
_MAX_CUT_OFFS = 10
_REFUSALS = (429, 503)
_ELSEWHERE_AFTER_S = 0.1


@dataclass
class Clients:
    """Sends visits to the doors of a house and keeps what came of each."""

    house: House
    expected: Mapping[str, Answer]
    clock: Clock
    progress: Progress
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pools = {
            door.name: ConnectionPool(parse_origin(door.base_url), self.clock)
            for door in self.house.doors
        }

    async def keep_asking(self, visits: Iterator[Visit], count: int, over: asyncio.Event) -> None:
        """`count` clients at once until `over`; what they have begun then, they finish."""

        async def client() -> None:
            while not over.is_set():
                self.outcomes.append(await self.serve(next(visits)))

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(client())

    async def serve(self, visit: Visit) -> Outcome:
        """One visit to its end, whatever happens to it."""
        attempt = _Attempts(visit, self.clock.now())
        doors = self.house.doors
        for number in range(visit.number, visit.number + _MAX_REFUSALS + _MAX_CUT_OFFS):
            outcome = await self._try_at(doors[number % len(doors)], attempt)
            if outcome is not None:
                if outcome.problem:
                    self.progress(f"{outcome.result}: visit {visit.number}: {outcome.problem}")
                return outcome
        return attempt.over(self.clock.now(), Result.LOST, "refused again and again")

    def close(self) -> None:
        """Closes idle connections."""
        for pool in self._pools.values():
            pool.close()

    async def _try_at(self, door: Door, attempt: _Attempts) -> Outcome | None:
        """The outcome, or None if the client is to try again."""
        visit, began_s = attempt.visit, self.clock.now()
        reader = attempt.reader = AnswerReader()
        leaves_in_s = attempt.leaves_in_s(began_s)
        try:
            async with asyncio.timeout(min(leaves_in_s, DEADLINE_S)):
                response = await self._pools[door.name].exchange(
                    visit.ask.payload(door.base_url.split("//")[1], visit.salt), reader.event
                )
        except TimeoutError:
            if leaves_in_s <= DEADLINE_S:
                return self._left(attempt)
            return self._over(
                attempt, Result.LOST, f"no end within {DEADLINE_S:g} s at {door.name}"
            )
        except (OSError, ProtocolError) as error:
            if not self.house.was_away(door.name, began_s):
                return self._over(attempt, Result.LOST, f"{door.name} hung up: {error!r}")
            attempt.num_cut_off += 1
            await asyncio.sleep(_ELSEWHERE_AFTER_S)
            return None
        return await self._answered(door, attempt, response)

    async def _answered(self, door: Door, attempt: _Attempts, response: Response) -> Outcome | None:
        now_s, ask = self.clock.now(), attempt.visit.ask
        retry_after = response.headers.get("retry-after")
        if response.status in _REFUSALS and retry_after and attempt.num_refused < _MAX_REFUSALS:
            attempt.num_refused += 1
            await asyncio.sleep(min(float(retry_after), max(0.0, attempt.leaves_in_s(now_s))))
            return None
        if response.status != 200:
            said = response.body[:300].decode(errors="replace")
            return self._over(attempt, Result.LOST, f"HTTP {response.status}: {said}")
        if not ask.streams:
            attempt.reader.body(now_s, response.body)
        attempt.reader.end()
        flaw = attempt.reader.problem
        flaw = flaw or difference(self.expected[ask.name], attempt.reader.answer())
        return self._judged(attempt, flaw, Result.RIGHT)

    def _left(self, attempt: _Attempts) -> Outcome:
        flaw = attempt.reader.problem
        flaw = flaw or partial_difference(
            self.expected[attempt.visit.ask.name], attempt.reader.answer()
        )
        return self._judged(attempt, flaw, Result.LEFT)

    def _judged(self, attempt: _Attempts, flaw: Difference | None, else_: Result) -> Outcome:
        if flaw is None:
            return self._over(attempt, else_)
        results = {Flaw.LOST: Result.LOST, Flaw.DOUBLED: Result.DOUBLED, Flaw.WRONG: Result.WRONG}
        return self._over(attempt, results[flaw.flaw], flaw.problem)

    def _over(self, attempt: _Attempts, result: Result, problem: str = "") -> Outcome:
        return attempt.over(self.clock.now(), result, problem)


@dataclass
class _Attempts:
    """A visit while its client tries."""

    visit: Visit
    started_s: float
    reader: AnswerReader = field(default_factory=AnswerReader)
    num_refused: int = 0
    num_cut_off: int = 0

    def leaves_in_s(self, now_s: float) -> float:
        """When the client will hang up, from now on; for ever if it stays."""
        if self.visit.leaves_after_s is None:
            return float("inf")
        return max(0.0, self.started_s + self.visit.leaves_after_s - now_s)

    def over(self, now_s: float, result: Result, problem: str = "") -> Outcome:
        return Outcome(
            number=self.visit.number,
            ask=self.visit.ask.name,
            result=result,
            started_s=self.started_s,
            ended_s=now_s,
            token_times_s=tuple(self.reader.times_s) if self.visit.ask.streams else (),
            num_refused=self.num_refused,
            num_cut_off=self.num_cut_off,
            problem=problem and f"{self.visit.ask.name}: {problem}",
        )


async def undisturbed(
    door: Door, asks: Sequence[Ask], clock: Clock, *, at_once: int
) -> dict[str, Answer]:
    """Each ask's answer before anything is wrong. Raises ServerError if one fails even so."""
    pool = ConnectionPool(parse_origin(door.base_url), clock)
    gate = asyncio.Semaphore(at_once)

    async def answer(ask: Ask) -> Answer:
        reader = AnswerReader()
        payload = ask.payload(door.base_url.split("//")[1], salt=f"undisturbed {ask.name}")
        async with gate, asyncio.timeout(DEADLINE_S):
            response = await pool.exchange(payload, reader.event)
        if response.status == 200 and not ask.streams:
            reader.body(clock.now(), response.body)
        reader.end()
        if response.status != 200 or reader.problem:
            said = response.body or json.dumps(str(reader.problem)).encode()
            raise ServerError(f"{ask.name} failed undisturbed: HTTP {response.status} {said!r}")
        return reader.answer()

    try:
        answers = await asyncio.gather(*map(answer, asks))
    except (OSError, ProtocolError) as error:
        raise ServerError(f"no undisturbed answers: {error!r}") from error
    finally:
        pool.close()
    return {ask.name: each for ask, each in zip(asks, answers, strict=True)}
