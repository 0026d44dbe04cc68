"""Keys at the door of a whole router: who comes in, what each may use, and what that costs."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import openai
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from fakes_tenants import (
    ADMIN_TOKEN,
    bearer,
    client,
    file_settings,
    keyed_house,
    make_key,
    open_store,
    put_keys,
)
from prometheus_client.parser import text_string_to_metric_families

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from router.generation import Generation
from router.request_spec import RequestSpec
from router.tenants.call import call_of, calling
from state.tenants import KeyRecord, PriorityClass, UsageRow

PROMPT = list(range(100, 140))
INTERACTIVE, STANDARD, BATCH = PriorityClass


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "seed": 1} | fields


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return file_settings(tmp_path / "tenants.db", refresh_s=1e-6)


def in_house(
    texts: Texts,
    settings: dict[str, Any],
    records: list[KeyRecord],
    test: Callable[[House], Awaitable[None]],
    **more: Any,
) -> None:
    async def run() -> None:
        async with keyed_house(texts, settings, *records, **more) as h:
            await test(h)

    asyncio.run(run())


async def ask(h: House, key: str, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    return await h.http.post(path, json=body(**fields), headers=bearer(key))


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


async def usage(settings: dict[str, Any]) -> list[UsageRow]:
    today = time.strftime("%Y-%m-%d", time.gmtime())
    async with open_store(settings) as store:
        return list(await store.usage(today))


# ---- who comes in


def test_openais_client_hears_what_is_wrong_with_its_key(
    texts: Texts, settings: dict[str, Any]
) -> None:
    good, record = make_key()
    expired, past = make_key()
    revoked, ended = make_key()
    past = dataclasses.replace(past, expires_at=time.time() - 1)
    ended = dataclasses.replace(ended, revoked_at=time.time())
    unknown, _ = make_key()

    async def test(h: House) -> None:
        async with client(h, good) as c:
            answer = await c.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2)
            assert answer.usage is not None and answer.usage.completion_tokens == 2
            assert [m.id async for m in c.models.list()] == [MODEL]
        for key in (expired, revoked, unknown, good[:-1] + "~", "none"):
            async with client(h, key) as c:
                with pytest.raises(openai.AuthenticationError) as refused:
                    await c.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2)
                assert refused.value.code == "invalid_api_key"
                with pytest.raises(openai.AuthenticationError):
                    await c.models.list()
        response = await h.http.post("/v1/completions", content=b"{")
        assert response.status_code == 401, "before the body is looked at"
        assert response.headers["www-authenticate"] == "Bearer"
        assert error_of(response)["type"] == "invalid_request_error"
        assert h.p.attempts[1:] == []

    in_house(texts, settings, [record, past, ended], test)


def test_probes_need_no_key_and_metrics_if_so_set(texts: Texts, settings: dict[str, Any]) -> None:
    async def test(h: House) -> None:
        for path in ("/health", "/live", "/ready"):
            assert (await h.http.get(path)).status_code == 200
        assert (await h.http.get("/metrics")).status_code == 401
        assert (await h.http.get("/nowhere")).status_code == 401

    settings["tenants"]["open_metrics"] = False
    in_house(texts, settings, [], test)


def test_a_revoked_key_is_refused_while_the_router_runs(
    texts: Texts, settings: dict[str, Any]
) -> None:
    key, record = make_key()

    async def test(h: House) -> None:
        assert (await ask(h, key)).status_code == 200
        await put_keys(settings, [dataclasses.replace(record, revoked_at=time.time())])
        assert (await ask(h, key)).status_code == 401

    in_house(texts, settings, [record], test)


def test_a_key_asks_only_what_it_may(texts: Texts, settings: dict[str, Any]) -> None:
    other_model, first = make_key()
    chats, second = make_key()
    first = dataclasses.replace(first, models=("another",))
    second = dataclasses.replace(second, endpoints=("/v1/chat",))

    async def test(h: House) -> None:
        async with client(h, other_model) as c:
            with pytest.raises(openai.PermissionDeniedError) as refused:
                await c.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2)
            assert refused.value.code == "permission_denied"
        assert (await ask(h, chats)).status_code == 403
        messages = [{"role": "user", "content": "hi"}]
        chat = {"model": MODEL, "messages": messages, "max_tokens": 2}
        answer = await h.http.post("/v1/chat/completions", json=chat, headers=bearer(chats))
        assert answer.status_code == 200
        assert (await ask(h, chats, "/v1/chatter")).status_code == 403

    in_house(texts, settings, [first, second], test)


def test_without_keys_in_force_whatever_is_sent_is_fine(texts: Texts, tmp_path: Path) -> None:
    settings = file_settings(tmp_path / "tenants.db", require_keys=False)

    async def run() -> None:
        async with house(texts, overrides=settings) as h:
            assert (await ask(h, "whatever")).status_code == 200
            assert h.p.attempts[0].tenant == ""
        assert not (tmp_path / "tenants.db").exists()

    asyncio.run(run())


def test_grpc_wants_the_same_keys(texts: Texts, settings: dict[str, Any]) -> None:
    key, record = make_key(requests_per_minute=1)

    async def test(h: House) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            request = pb.CompleteRequest(
                model=MODEL, token_ids=pb.TokenIds(ids=PROMPT), max_tokens=3
            )

            async def fails(metadata: tuple[tuple[str, str], ...]) -> grpc.aio.AioRpcError:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    [event async for event in stub.Complete(request, metadata=metadata)]
                return refused.value

            nobody = await fails(())
            assert nobody.code() is grpc.StatusCode.UNAUTHENTICATED
            assert dict(nobody.trailing_metadata())["tandem-code"] == "invalid_api_key"
            with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                await stub.ListModels(pb.ListModelsRequest())
            mine = (("authorization", f"Bearer {key}"),)
            events = [event async for event in stub.Complete(request, metadata=mine)]
            assert events[-1].usage.completion_tokens == 3
            assert h.p.attempts[0].tenant == record.key_id
            limited = await fails(mine)
            assert limited.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            details = dict(limited.trailing_metadata())
            assert details["tandem-code"] == "rate_limit_exceeded"
            assert details["tandem-reason"] == "requests" and int(details["retry-after"]) > 50

    in_house(texts, settings, [record], test)


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
        first = await ask(h, key)
        assert first.headers["x-ratelimit-remaining-tokens"] == "60"
        # 40 of prompt, of which 30 count a tenth, and 6 of output: 19.
        second = await ask(h, key)
        assert 41 <= int(second.headers["x-ratelimit-remaining-tokens"]) <= 44
        third = await ask(h, key)
        assert 22 <= int(third.headers["x-ratelimit-remaining-tokens"]) <= 27
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


# ---- what is kept apart


def test_caches_are_a_keys_own_unless_it_shares(texts: Texts, settings: dict[str, Any]) -> None:
    made = [make_key(f"key {i}") for i in range(4)]
    records = [dataclasses.replace(r, isolate_cache=i < 2) for i, (_, r) in enumerate(made)]

    async def test(h: House) -> None:
        for key, _ in made:
            await ask(h, key)
            await ask(h, key, cache_salt="mine")
        salts = [attempt.cache_salt for attempt in h.p.attempts]
        assert salts[4:] == ["", "mine", "", "mine"]
        assert len(set(salts[:4])) == 4
        # Nobody finds another's salt by naming it.
        await ask(h, made[1][0], cache_salt=records[0].cache_salt)
        assert h.p.attempts[-1].cache_salt not in salts
        assert [a.tenant for a in h.p.attempts[:2]] == [records[0].key_id] * 2

    in_house(texts, settings, records, test)


def test_a_priority_counts_within_its_class_only(texts: Texts, settings: dict[str, Any]) -> None:
    made = {of: make_key(of=of) for of in PriorityClass}

    async def test(h: House) -> None:
        for of in PriorityClass:
            for priority in (-100, 0, 100):
                assert (await ask(h, made[of][0], priority=priority)).status_code == 200
        priorities = [attempt.priority for attempt in h.p.attempts]
        assert priorities == sorted(set(priorities)), "no client reaches another class"
        for hostile in (-101, 101, 2**31, -(2**63), 10**30):
            response = await ask(h, made[BATCH][0], priority=hostile)
            assert response.status_code == 400 and error_of(response)["param"] == "priority"

    in_house(texts, settings, [record for _, record in made.values()], test)


def test_a_flood_of_one_tenant_leaves_the_other_its_turns(
    texts: Texts, settings: dict[str, Any]
) -> None:
    flooder, first = make_key("flooder")
    quiet, second = make_key("quiet")
    settings["router"] = {"dispatch_ahead_tokens": 1}

    async def test(h: House) -> None:
        h.p.gate.clear()
        prompts = iter([list(range(i, i + 40)) for i in range(0, 1000, 40)])
        flood = [asyncio.create_task(ask(h, flooder, prompt=next(prompts))) for _ in range(12)]
        await h.p.until(lambda w: len(w.attempts) == 2)
        async with asyncio.timeout(DEADLINE_S):
            while sum(h.router.door.hall.line.num_waiting.values()) < 10:
                await asyncio.sleep(0)
        late = [asyncio.create_task(ask(h, quiet, prompt=next(prompts))) for _ in range(3)]
        async with asyncio.timeout(DEADLINE_S):
            while sum(h.router.door.hall.line.num_waiting.values()) < 13:
                await asyncio.sleep(0)
        h.p.gate.set()
        assert {r.status_code for r in await asyncio.gather(*flood, *late)} == {200}
        tenants = [attempt.tenant for attempt in h.p.attempts]
        last = max(i for i, tenant in enumerate(tenants) if tenant == second.key_id)
        assert last <= 8, "by turns: two that were sent before, then one each"

    in_house(texts, settings, [first, second], test)


def test_online_goes_before_batch_and_interactive_before_all(
    texts: Texts, settings: dict[str, Any]
) -> None:
    made = {of: make_key(of=of) for of in PriorityClass}
    settings["router"] = {"dispatch_ahead_tokens": 1}

    async def test(h: House) -> None:
        h.p.gate.clear()
        first = [asyncio.create_task(ask(h, made[STANDARD][0])) for _ in range(2)]
        await h.p.until(lambda w: len(w.attempts) == 2)
        asking = []
        for count, of in enumerate((BATCH, STANDARD, INTERACTIVE), start=1):
            asking.append(asyncio.create_task(ask(h, made[of][0])))
            async with asyncio.timeout(DEADLINE_S):
                while sum(h.router.door.hall.line.num_waiting.values()) < count:
                    await asyncio.sleep(0)
        h.p.gate.set()
        await asyncio.gather(*first, *asking)
        order = [attempt.tenant for attempt in h.p.attempts[2:]]
        assert order == [made[of][1].key_id for of in (INTERACTIVE, STANDARD, BATCH)]

    in_house(texts, settings, [record for _, record in made.values()], test)


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
        with pytest.raises(Exception, match="API key"):
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
