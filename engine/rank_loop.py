"""The thread of a rank that follows a leader: take a plan, do it, take the next.

no scheduler, no block pool, no sampler: which blocks are whose is the leader's business
end    told to stop; or an error, and the group is of no use any more
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from engine.builder import Rank
from engine.plan_channel import PlanReceiver
from engine.plan_message import CopyBlocks, PlanMessage, Step, Stop, Unpack
from kv_transfer.rank_port import RankPort

log = logging.getLogger(__name__)


class RankLoop:
    """Follows the plans of one leader.

    From its thread, `on_end` is told why it ended, and `taken` of the last block that a plan needs,
    before the plan is followed.
    """

    def __init__(
        self,
        rank: Rank,
        plans: PlanReceiver,
        port: RankPort,
        on_end: Callable[[BaseException | None], None],
        taken: Callable[[int], None],
    ) -> None:
        self._rank = rank
        self._plans = plans
        self._port = port
        self._on_end = on_end
        self._taken = taken
        self._thread = threading.Thread(target=self._run, name="tandem-rank-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ends the loop; False if it is still in a step when the time is up."""
        self._plans.close()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while self._follow():
                pass
        except Exception as failure:  # the thread's outermost frame: `on_end` hears of it
            log.exception("the rank loop failed")
            error = failure
        self._plans.close()  # the leader learns of it at once
        self._on_end(error)

    def _follow(self) -> bool:
        plan = self._plans.receive()
        self._taken(last_block(plan))
        match plan:
            case Step(step):
                self._rank.runner.compute(step)
            case CopyBlocks(pairs):
                self._rank.storage.copy_blocks(pairs)
            case Unpack(link_id, seq, blocks):
                self._port.unpack(link_id, seq, blocks)
            case Stop():
                return False
        self._port.followed()
        return True


def last_block(plan: PlanMessage) -> int:
    """The highest number of a block that a plan needs; -1 if it needs none."""
    match plan:
        case Step(step):
            return int(step.block_tables.max(initial=-1))
        case CopyBlocks(pairs):
            return max((target for _, target in pairs), default=-1)
        case Unpack(_, _, blocks):
            return max(blocks, default=-1)
        case Stop():
            return -1
