"""Keys for tests, and houses that want them."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
from fakes_house import MODEL, House, Texts, house

from core.config import StateConfig, TenantsConfig
from state.api_key import new_key
from state.file_tenants import FileTenants
from state.redis_tenants import RedisTenants
from state.tenants import KeyLimits, KeyRecord, PriorityClass, UsageRow

PROMPT = list(range(100, 140))
INTERACTIVE, STANDARD, BATCH = PriorityClass
TIMEOUT_S = 10.0
ADMIN_TOKEN = "an-admin-token-of-tests"


def make_key(
    name: str = "somebody",
    *,
    of: PriorityClass = PriorityClass.STANDARD,
    **limits: int,
) -> tuple[str, KeyRecord]:
    return new_key(name, now=time.time(), priority_class=of, limits=KeyLimits(**limits))


def redis_settings(url: str, namespace: str | None = None, **tenants: Any) -> dict[str, Any]:
    """Overrides for a house that shares its tenants on a Redis."""
    state = StateConfig(
        backend="redis", redis_url=url, namespace=namespace or uuid.uuid4().hex
    ).model_dump()
    return {"state": state, "tenants": _tenants(**tenants)}


def file_settings(path: Path, **tenants: Any) -> dict[str, Any]:
    """Overrides for a house whose tenants lie in a file."""
    return {"tenants": _tenants(file=str(path), **tenants)}


def _tenants(**given: Any) -> dict[str, Any]:
    # Busy machines answer late: only who wants a Redis that is away says when it is.
    wanted: dict[str, Any] = {"require_keys": True, "store_timeout_s": TIMEOUT_S} | given
    return TenantsConfig(**wanted).model_dump()


async def put_keys(settings: dict[str, Any], records: Sequence[KeyRecord]) -> None:
    async with open_store(settings) as store:
        for record in records:
            await store.put_key(record)


@contextlib.asynccontextmanager
async def open_store(settings: dict[str, Any]) -> AsyncIterator[RedisTenants | FileTenants]:
    """The tenants' store of a house with these settings."""
    if "state" in settings:
        state = settings["state"]
        store: RedisTenants | FileTenants = RedisTenants(
            state["redis_url"], state["namespace"], TIMEOUT_S
        )
    else:
        store = FileTenants(Path(settings["tenants"]["file"]), TIMEOUT_S)
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def keyed_house(
    texts: Texts, settings: dict[str, Any], *records: KeyRecord, **more: Any
) -> AsyncIterator[House]:
    """A house that lets in the owners of these keys."""
    await put_keys(settings, records)
    async with house(texts, overrides=settings, **more) as h:
        yield h


def client(h: House, key: str) -> openai.AsyncOpenAI:
    """Close it, or use it in `async with`."""
    url = f"http://127.0.0.1:{h.ports.http}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "seed": 1} | fields


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
