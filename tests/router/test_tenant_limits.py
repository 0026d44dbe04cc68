"""What a key may use, what that costs, and the operator who sees to it, on a whole router."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fakes_house import MODEL, House, Texts
from fakes_pull import DEADLINE_S
from fakes_tenants import (
    ADMIN_TOKEN,
    BATCH,
    INTERACTIVE,
    PROMPT,
    ask,
    bearer,
    client,
    error_of,
    file_settings,
    in_house,
    make_key,
    usage,
)
from prometheus_client.parser import text_string_to_metric_families

from core.errors import AuthenticationError
from router.generation import Generation
from router.request_spec import RequestSpec
from router.tenants.call import call_of, calling


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return file_settings(tmp_path / "tenants.db", refresh_s=1e-6)


# ---- what each may use


def test_requests_a_minute_are_counted_and_told(texts: Texts, settings: dict[str, Any]) -> None:
    key, record = make_key(requests_per_minute=2, tokens_per_minute=100_000)
    free, other = make_key()

    async def test(h: House) -> None:
        async with client(h, key) as c:
            raw = await c.completions.with_raw_response.create(
                model=MODEL, prompt=PROMPT, max_tokens=2
            )
            assert raw.headers["x-ratelimit-limit-requests"] == "2"
            assert raw.headers["x-ratelimit-remaining-requests"] == "1"
            assert raw.headers["x-ratelimit-remaining-tokens"] == str(100_000 - len(PROMPT))
            assert raw.headers["x-ratelimit-reset-requests"].endswith("s")
            stream = await c.completions.with_raw_response.create(
                model=MODEL, prompt=[PROMPT, PROMPT], max_tokens=2, stream=True
            )
            assert stream.headers["x-ratelimit-remaining-requests"] == "0", "two prompts, one call"
            [event async for event in stream.parse()]
            with pytest.raises(openai.RateLimitError) as refused:
                await c.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2)
        assert refused.value.code == "rate_limit_exceeded"
        headers = refused.value.response.headers
        assert 1 <= int(headers["retry-after"]) <= 31
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert (await ask(h, free)).status_code == 200, "others are not touched"
        assert "x-ratelimit-limit-requests" not in (await ask(h, free)).headers

    in_house(texts, settings, [record, other], test)


def test_tokens_are_charged_when_known_and_given_back_where_cached(
    texts: Texts, settings: dict[str, Any]
) -> None:
    key, record = make_key(tokens_per_minute=100)

    async def test(h: House) -> None:
        started = time.monotonic()

        def refilled() -> float:
            """At most."""
            return 100 * (time.monotonic() - started) / 60

        first = await ask(h, key)
        assert first.headers["x-ratelimit-remaining-tokens"] == "60"
        # 40 of prompt, of which 30 count a tenth, and 6 of output: 19.
        second = await ask(h, key)
        left = int(second.headers["x-ratelimit-remaining-tokens"])
        assert 41 <= left <= 41 + refilled()
        third = await ask(h, key)
        left = int(third.headers["x-ratelimit-remaining-tokens"])
        assert 22 <= left <= 22 + refilled()
        long = await ask(h, key, prompt=list(range(100, 201)))
        assert long.status_code == 429 and "must be shorter" in error_of(long)["message"]

    in_house(texts, settings, [record], test, num_cached_tokens=30)


def test_who_is_served_nothing_is_charged_nothing(texts: Texts, settings: dict[str, Any]) -> None:
    key, record = make_key(requests_per_minute=1, tokens_per_minute=50, max_concurrency=1)
    settings["router"] = {"no_worker_timeout_s": 0.05}

    async def test(h: House) -> None:
        await h.p.die()
        await h.until(lambda: len(h.router.fleet.views()) == 1)
        assert (await ask(h, key)).status_code == 503
        await h.restart(h.p)
        assert (await ask(h, key)).status_code == 200

    in_house(texts, settings, [record], test)


def test_so_many_run_at_once_and_no_more(texts: Texts, settings: dict[str, Any]) -> None:
    key, record = make_key(max_concurrency=2)

    async def test(h: House) -> None:
        h.p.gate.clear()
        running = [asyncio.create_task(ask(h, key)) for _ in range(2)]
        await h.p.until(lambda w: len(w.attempts) == 2)
        third = await ask(h, key)
        assert third.status_code == 429 and third.headers["retry-after"] == "1"
        running[0].cancel()
        await h.p.until(lambda w: len(w.cancels) == 1)
        async with asyncio.timeout(DEADLINE_S):
            while h.router.door.admission.num_running > 1:
                await asyncio.sleep(0)
        again = asyncio.create_task(ask(h, key, prompt=[PROMPT, PROMPT]))
        await h.p.until(lambda w: len(w.attempts) == 4)
        h.p.gate.set()
        assert (await running[1]).status_code == (await again).status_code == 200
        assert (await ask(h, key)).status_code == 200

    in_house(texts, settings, [record], test)


def test_a_days_tokens_are_a_quota_that_survives_the_router(
    texts: Texts, settings: dict[str, Any]
) -> None:
    key, record = make_key(daily_tokens=100)

    async def spend(h: House) -> None:
        assert (await ask(h, key)).status_code == 200
        assert (await ask(h, key)).status_code == 200

    async def refused(h: House) -> None:
        async with client(h, key) as c:
            with pytest.raises(openai.RateLimitError) as error:
                await c.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2)
        assert error.value.code == error.value.type == "insufficient_quota"
        assert int(error.value.response.headers["retry-after"]) <= 86_400

    in_house(texts, settings, [record], spend)
    in_house(texts, settings, [record], refused)


# ---- what it costs


def test_usage_is_counted_weighed_and_priced(
    texts: Texts, settings: dict[str, Any], tmp_path: Path
) -> None:
    key, record = make_key()
    cheap, batch = make_key(of=BATCH)
    (tmp_path / "prices.toml").write_text(
        f"[{MODEL}]\ninput = 1.0\ncached_input = 0.5\noutput = 4.0\nbatch_discount = 0.25\n"
    )
    settings["tenants"]["prices_file"] = str(tmp_path / "prices.toml")

    async def test(h: House) -> None:
        await ask(h, key)
        await ask(h, key)
        await ask(h, cheap)
        metrics = (await h.http.get("/metrics")).text
        samples = {
            (s.name, *sorted(s.labels.values())): s.value
            for family in text_string_to_metric_families(metrics)
            for s in family.samples
        }
        assert samples["tandem_tenant_requests_total", "finished", "somebody"] == 3
        assert samples["tandem_tenant_tokens_total", "prompt", "somebody"] == 120
        assert samples["tandem_line_waiting", "batch"] == 0

    in_house(texts, settings, [record, batch], test, num_cached_tokens=30)
    rows = {row.key_id: row for row in asyncio.run(usage(settings))}
    online = rows[record.key_id]
    assert (online.requests, online.prompt_tokens, online.cached_tokens) == (2, 80, 60)
    assert (online.output_tokens, online.weighted_tokens) == (12, 2 * 19)
    assert online.cost_nanos == 2 * (10 * 1000 + 30 * 500 + 6 * 4000)
    assert rows[batch.key_id].batch and rows[batch.key_id].weighted_tokens == 10
    assert rows[batch.key_id].cost_nanos == round(0.75 * online.cost_nanos / 2)


def test_work_that_no_client_waits_for_is_its_keys_and_goes_last(
    texts: Texts, settings: dict[str, Any]
) -> None:
    _, record = make_key(of=INTERACTIVE)

    async def test(h: House) -> None:
        spec = RequestSpec(model=MODEL, prompt=tuple(PROMPT), max_tokens=3)
        with calling(call_of(record, batch=True)):
            generation = Generation(h.router.door, spec, h.router.door.clock.now())
        async for _ in generation.deltas():
            pass
        assert h.p.attempts[0].priority == 1000
        nobody = Generation(h.router.door, spec, 0.0)
        with pytest.raises(AuthenticationError, match="API key"):
            await anext(nobody.deltas())

    in_house(texts, settings, [record], test)
    (row,) = asyncio.run(usage(settings))
    assert row.batch and row.key_id == record.key_id


# ---- the operator's server


def test_the_admin_server_makes_shows_and_revokes_keys(
    texts: Texts, settings: dict[str, Any]
) -> None:
    settings["router"] = {"admin_port": 0, "admin_token": ADMIN_TOKEN}
    settings["tenants"]["refresh_s"] = 3600.0

    async def test(h: House) -> None:
        url = f"http://127.0.0.1:{h.ports.admin}"
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as admin:
            for headers in ({}, bearer("wrong"), {"authorization": "Basic x"}):
                refused = await admin.get("/admin/keys", headers=headers)
                assert refused.status_code == 401
            admin.headers.update(bearer(ADMIN_TOKEN))
            made = await admin.post("/admin/keys", json={"name": "alice", "daily_tokens": 5000})
            assert made.status_code == 201
            key, key_id = made.json()["key"], made.json()["key_id"]
            assert (await ask(h, key)).status_code == 200
            (listed,) = (await admin.get("/admin/keys")).json()["keys"]
            assert listed["name"] == "alice" and listed["daily_tokens"] == 5000
            assert not {"key", "secret_hash", "cache_salt"} & set(listed)
            assert (await admin.get("/admin/limits")).json()["num_routers"] == 1
            async with asyncio.timeout(DEADLINE_S):
                while not (await admin.get("/admin/usage")).json()["usage"]:
                    await asyncio.sleep(0)
            (row,) = (await admin.get("/admin/usage", params={"key": key_id})).json()["usage"]
            assert row["output_tokens"] == 6 and row["cost"] == 0.0
            left = (await admin.get(f"/admin/limits/{key_id}")).json()
            assert left["daily_tokens_used"] == 46 and left["requests"] is None
            assert (await admin.get("/admin/limits/nobody")).status_code == 404
            assert (await admin.post(f"/admin/keys/{key_id}/revoke")).status_code == 200
            assert (await ask(h, key)).status_code == 401, "at once on this router"
            assert (await admin.post("/admin/keys/nobody/revoke")).status_code == 404
            wrongs: tuple[Any, ...] = (
                {},
                {"name": ""},
                {"name": "x", "daily_tokens": 0},
                {"nme": "x"},
                [],
            )
            for wrong in wrongs:
                assert (await admin.post("/admin/keys", json=wrong)).status_code == 400
        assert (await h.http.get("/admin/keys", headers=bearer(ADMIN_TOKEN))).status_code != 200

    in_house(texts, settings, [], test)
