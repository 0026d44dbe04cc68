"""Keys at the door of a whole router: who comes in, what each may use, and what that costs."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import openai
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from fakes_tenants import (
    BATCH,
    INTERACTIVE,
    PROMPT,
    STANDARD,
    ask,
    bearer,
    client,
    error_of,
    file_settings,
    in_house,
    make_key,
    put_keys,
)

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from state.tenants import PriorityClass


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return file_settings(tmp_path / "tenants.db", refresh_s=1e-6)


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
        # What worse classes have at workers would keep nobody back.
        first = [asyncio.create_task(ask(h, made[INTERACTIVE][0])) for _ in range(2)]
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
