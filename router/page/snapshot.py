"""What the page shows of one moment: pools, the line, the last minutes, recent requests.

Its size has bounds whatever the load and the number of workers: see the MAX_ constants. Never a
prompt or an answer. Times are in seconds; rates are a second's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from core.release import RELEASE
from core.request import Phase
from router.door import Door
from router.fleet.standing import Standing
from router.observe.request_record import RequestRecord
from router.observe.request_window import NUM_STEPS, STEP_S, Percentiles, WindowPoint

MAX_WORKERS = 64
"""Of each pool that are told one by one; sums are of all."""
MAX_REQUESTS = 24
POOLS = (Phase.PREFILL, Phase.DECODE)


def snapshot(door: Door, *, shows_requests: bool) -> dict[str, object]:
    """The moment, as JSON. `requests` is None where they are not to be shown."""
    now, window, admission = door.clock.now(), door.observer.window, door.admission
    standings = door.fleet.standings()
    line = door.hall.line
    return {
        "at": time.time(),
        "model": door.settings.model,
        "version": RELEASE,
        "state": _state(door),
        "pools": [_pool(role, [s for s in standings if s.member.role is role]) for role in POOLS],
        "queue": {
            "in_house": admission.num_running,
            "running": _num_running(door),
            "waiting_tokens": admission.num_waiting_tokens,
            "in_line": {each.value: count for each, count in line.num_waiting.items()},
            "tokens_per_s": _short(line.model.tokens_per_second),
        },
        "level": {"ttft_s": window.level.ttft_s, "tpot_s": window.level.tpot_s},
        "now": _point(window.summary(now)),
        "step_s": STEP_S,
        "num_steps": NUM_STEPS,
        "history": [_point(point) for point in window.points(now)],
        "requests": _requests(door) if shows_requests else None,
    }


def _state(door: Door) -> str:
    if door.admission.draining:
        return "draining"
    no_pair = door.fleet.readiness()
    return "ready" if no_pair is None else no_pair.reason


def _num_running(door: Door) -> int:
    """Requests that a worker has begun to compute."""
    return sum(1 for record in door.observer.ring.running() if record.state == "running")


def _pool(role: Phase, standings: Sequence[Standing]) -> dict[str, object]:
    kv = Counter[str]()
    for standing in standings:
        kv.update(standing.load.kv_blocks)
    listed = sorted(standings, key=lambda s: (s.member.worker_id, s.member.epoch))[:MAX_WORKERS]
    return {
        "role": role.value,
        "num_workers": len(standings),
        "num_ready": sum(s.state == "ready" for s in standings),
        "running": sum(s.load.num_running for s in standings),
        "waiting": sum(s.load.num_waiting for s in standings),
        "kv_blocks": dict(kv),
        "workers": [_worker(standing) for standing in listed],
    }


def _worker(standing: Standing) -> dict[str, object]:
    load = standing.load
    return {
        "id": standing.member.worker_id,
        "epoch": standing.member.epoch,
        "state": standing.state,
        "running": load.num_running,
        "waiting": load.num_waiting,
        "prefill_tokens": load.waiting_prefill_tokens,
        "attempts": standing.num_attempts,
        "preemptions": load.num_preemptions,
        "kv_blocks": load.kv_blocks,
        "promised_blocks": load.num_promised_blocks,
        "transfer_bytes": load.kv_transfer_bytes,
        "transfer_failures": sum(load.kv_transfer_failures.values()),
        "step_age_s": _short(load.last_step_age_s),
        "mfu": None if load.steps is None else _short(load.steps.mfu),
        "mbu": None if load.steps is None else _short(load.steps.mbu),
    }


def _point(point: WindowPoint) -> dict[str, object]:
    span_s = point.span_s
    return {
        "requests_per_s": _short(point.num_requests / span_s),
        "good_per_s": _short(point.num_good / span_s),
        "failed_per_s": _short(point.num_failed / span_s),
        "tokens_per_s": _short(point.num_output_tokens / span_s),
        "requests": point.num_requests,
        "failed": point.num_failed,
        "cancelled": point.num_cancelled,
        "retries": point.num_retries,
        "ttft_s": _percentiles(point.ttft_s),
        "tpot_s": _percentiles(point.tpot_s),
    }


def _requests(door: Door) -> list[dict[str, object]]:
    return [_request(record) for record in islice(door.observer.ring.newest(), MAX_REQUESTS)]


def _request(record: RequestRecord) -> dict[str, object]:
    timings = record.timeline.timings()
    return {
        "id": record.request_id,
        "at": round(record.epoch_ns(record.timeline.received) / 1e9, 3),
        "class": record.priority_class,
        "state": record.state,
        "outcome": record.outcome,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "output_tokens": record.num_output_tokens,
        "attempts": len(record.timeline.attempts),
        "prefill_worker": record.prefill_worker,
        "decode_worker": record.decode_worker,
        "ttft_s": _short(timings.ttft_s),
        "tpot_s": _short(record.tpot_s),
        "total_s": _short(timings.total_s),
    }


def _percentiles(values: Percentiles) -> list[float] | None:
    return None if values is None else [float(f"{value:.4g}") for value in values]


def _short(value: float | None) -> float | None:
    """Four digits are more than a page shows."""
    return None if value is None else float(f"{value:.4g}")
