"""Pinned prompts on the account of a key: how much it may have, what that costs, who sees it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes_house import MODEL, House, Texts
from fakes_persuadable import metric
from fakes_pull import DEADLINE_S
from fakes_tenants import (
    ADMIN_TOKEN,
    PROMPT,
    ask,
    bearer,
    file_settings,
    in_house,
    make_key,
    usage,
)
from fakes_worker import BLOCK_SIZE

from core.load import LoadReport

EPHEMERAL = {"type": "ephemeral"}
FIVE_MINUTES = 300.0
FULL = len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE


@pytest.fixture
def keyed(tmp_path: Path) -> dict[str, Any]:
    return file_settings(tmp_path / "tenants.db", refresh_s=1e-6)


def test_a_key_pins_so_much_on_all_workers_together(texts: Texts, keyed: dict[str, Any]) -> None:
    key, record = make_key(pinned_tokens=100)
    free, other = make_key()
    none, without = make_key(pinned_tokens=0)
    keyed["tenants"]["pinned_tokens"] = 5000

    async def pinned(h: House, whose: str) -> tuple[int | None, int]:
        """The limit that the worker hears, and what it grants."""
        answer = await ask(h, whose, cache_control=EPHEMERAL)
        wish = h.p.attempts[-1].pins
        assert wish is not None
        return (
            wish.max_owned_tokens,
            answer.json()["usage"]["prompt_tokens_details"]["pinned_tokens"],
        )

    async def test(h: House) -> None:
        assert await pinned(h, key) == (100, FULL)
        wish = h.p.attempts[-1].pins
        assert wish is not None and wish.owner == record.key_id
        elsewhere = {record.key_id: 5, other.key_id: 300}
        h.d.report(LoadReport(kv_blocks={"free": 10_000}, pinned_blocks=elsewhere))
        await h.until(lambda: any(v.load.pinned_blocks for v in h.router.fleet.views()))
        assert await pinned(h, key) == (100 - 5 * BLOCK_SIZE, 0)
        assert await pinned(h, none) == (0, 0)
        assert await pinned(h, free) == (5000 - 300 * BLOCK_SIZE, FULL)

    in_house(texts, keyed, [record, other, without], test)


def test_pins_are_usage_and_cost_what_the_table_says(
    texts: Texts, keyed: dict[str, Any], tmp_path: Path
) -> None:
    key, record = make_key()
    (tmp_path / "prices.toml").write_text(f"[{MODEL}]\ninput = 1.0\npinned_hour = 60.0\n")
    keyed["tenants"]["prices_file"] = str(tmp_path / "prices.toml")

    async def test(h: House) -> None:
        await ask(h, key, cache_control=EPHEMERAL)
        await ask(h, key)

    in_house(texts, keyed, [record], test)
    (row,) = asyncio.run(usage(keyed))
    assert row.pinned_token_seconds == FULL * FIVE_MINUTES
    assert row.weighted_tokens == 2 * (len(PROMPT) + 6), "limits and quotas don't count it"
    assert row.cost_nanos == 2 * len(PROMPT) * 1000 + FULL * 1000 * 60 // 12


def test_the_operator_sees_what_a_key_has_pinned(texts: Texts, keyed: dict[str, Any]) -> None:
    keyed["router"] = {"admin_port": 0, "admin_token": ADMIN_TOKEN}

    async def test(h: House) -> None:
        url = f"http://127.0.0.1:{h.ports.admin}"
        async with httpx.AsyncClient(
            base_url=url, timeout=DEADLINE_S, headers=bearer(ADMIN_TOKEN)
        ) as admin:
            made = await admin.post("/admin/keys", json={"name": "a", "pinned_tokens": 100})
            assert made.status_code == 201 and made.json()["pinned_tokens"] == 100
            key_id = made.json()["key_id"]
            h.p.report(LoadReport(kv_blocks={"free": 9}, pinned_blocks={key_id: 3}))
            await h.until(lambda: any(v.load.pinned_blocks for v in h.router.fleet.views()))
            left = (await admin.get(f"/admin/limits/{key_id}")).json()
            assert left["pinned_tokens"] == 100
            assert left["pinned_tokens_used"] == 3 * BLOCK_SIZE
        assert metric(h, "tandem_kv_pinned_blocks", worker=h.p.worker_id) == 3

    in_house(texts, keyed, [], test)
