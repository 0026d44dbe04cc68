"""What the page is served: files that nothing can be smuggled into, snapshots of bounded size."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fakes_house import House, Texts, house
from fakes_tenants import bearer, file_settings, keyed_house, make_key

from core.load import LoadReport
from core.request import Phase
from router.fleet.standing import Standing
from router.page.files import FOLDER, load_page
from router.page.snapshot import MAX_REQUESTS, MAX_WORKERS, snapshot
from state.store import Member

ADMIN: dict[str, dict[str, object]] = {"observability": {"debug_requests": "admin"}}
PUBLIC: dict[str, dict[str, object]] = {"observability": {"debug_requests": "public"}}
SECRET = "a prompt that nobody else may read"


async def ask(h: House, text: str = SECRET) -> None:
    answer = await h.openai.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": text}], max_tokens=4
    )
    assert answer.choices[0].message.content


async def events(lines: AsyncIterator[str], count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async for line in lines:
        if line.startswith("data: "):
            found.append(json.loads(line[6:]))
        if len(found) == count:
            break
    return found


def test_the_page_and_its_files_come_with_a_strict_policy_and_the_right_caching(
    texts: Texts,
) -> None:
    async def check() -> None:
        async with house(texts) as h:
            page = await h.http.get("/dashboard")
            assert page.headers["cache-control"] == "no-cache"
            same = await h.http.get("/dashboard", headers={"if-none-match": page.headers["etag"]})
            assert same.status_code == 304 and not same.content
            links = re.findall(r'(?:src|href)="(/dashboard/[^"]+)"', page.text)
            assert len(links) == 4
            for link in links:
                file = await h.http.get(link)
                assert file.status_code == 200
                assert "immutable" in file.headers["cache-control"]
                assert file.headers["x-content-type-options"] == "nosniff"
                policy = file.headers["content-security-policy"]
                assert policy == page.headers["content-security-policy"]
                assert "unsafe" not in policy and "default-src 'none'" in policy
            old = links[0].replace(load_page().digest, "0" * 16)
            assert (await h.http.get(old)).status_code == 404
            assert (await h.http.get("/dashboard/assets/x/..%2fsnapshot.py")).status_code == 404

    asyncio.run(check())


def test_the_files_ask_nobody_else_for_anything() -> None:
    for path in FOLDER.iterdir():
        found = set(re.findall(r"https?://[^\"'\s]+", path.read_text()))
        assert found <= {"http://www.w3.org/2000/svg"}, path.name
        assert "innerHTML" not in path.read_text()


def test_another_content_has_another_address(tmp_path: Path) -> None:
    for name in ("index.html", "main.js"):
        (tmp_path / name).write_text("{{base}}")
    before = load_page(tmp_path)
    (tmp_path / "main.js").write_text("other")
    after = load_page(tmp_path)
    assert before.digest != after.digest
    assert before.index.content == f"/dashboard/assets/{before.digest}".encode()


def test_a_snapshot_tells_what_became_of_requests_and_never_their_text(texts: Texts) -> None:
    async def check() -> None:
        async with house(texts, overrides=PUBLIC) as h:
            for _ in range(3):
                await ask(h)
            h.d.report(LoadReport(num_running=7, kv_blocks={"free": 60, "running": 40}))
            await h.until(lambda: any(v.load.num_running == 7 for v in h.router.fleet.views()))
            async with h.http.stream("GET", "/dashboard/events") as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                (told,) = await events(stream.aiter_lines(), 1)
            assert told["state"] == "ready"
            assert told["now"]["requests"] == 3 and told["now"]["failed"] == 0
            assert len(told["now"]["ttft_s"]) == 3
            prefill, decode = told["pools"]
            assert (prefill["role"], decode["role"]) == ("prefill", "decode")
            assert decode["workers"][0]["kv_blocks"] == {"free": 60, "running": 40}
            assert decode["running"] == 7
            newest = told["requests"][0]
            assert newest["outcome"] == "finished" and newest["output_tokens"] == 4
            assert SECRET not in json.dumps(told)
            known = await h.http.get(f"/debug/requests/{newest['id']}")
            assert known.json()["requests"][0]["attempts"]

    asyncio.run(check())


def test_requests_are_not_shown_unless_the_operator_wants_it(texts: Texts) -> None:
    async def check() -> None:
        async with house(texts, overrides=ADMIN) as h:
            await ask(h)
            told = (await h.http.get("/dashboard/snapshot")).json()
            assert told["requests"] is None and told["now"]["requests"] == 1

    asyncio.run(check())


def test_a_snapshot_has_a_bounded_size_at_any_load(texts: Texts) -> None:
    async def check() -> None:
        async with house(texts, overrides=PUBLIC) as h:
            for _ in range(MAX_REQUESTS + 6):
                await ask(h)
            many = [_standing(number) for number in range(3 * MAX_WORKERS)]
            h.router.fleet.standings = lambda: many  # type: ignore[method-assign]
            told: Any = snapshot(h.router.door, shows_requests=True)
            decode = told["pools"][1]
            assert decode["num_workers"] == 3 * MAX_WORKERS
            assert decode["running"] == 5 * 3 * MAX_WORKERS
            assert len(decode["workers"]) == MAX_WORKERS
            assert len(told["requests"]) == MAX_REQUESTS
            assert len(json.dumps(told)) < 70_000

    asyncio.run(check())


def test_with_keys_the_page_is_open_and_what_it_shows_is_not(texts: Texts, tmp_path: Path) -> None:
    async def check() -> None:
        secret, record = make_key()
        settings = file_settings(tmp_path / "tenants.db")
        async with keyed_house(texts, settings | PUBLIC, record) as h:
            page = await h.http.get("/dashboard")
            assert page.status_code == 200
            (script,) = re.findall(r'src="([^"]+main.js)"', page.text)
            assert (await h.http.get(script)).status_code == 200
            for path in ("/dashboard/snapshot", "/dashboard/events", "/dashboard/requests"):
                assert (await h.http.get(path)).status_code == 401, path
            told = await h.http.get("/dashboard/snapshot", headers=bearer(secret))
            assert told.json()["model"] == "fake"

    asyncio.run(check())


def test_pages_that_look_on_see_new_numbers_and_their_end(texts: Texts) -> None:
    async def check() -> None:
        async with house(texts) as h, h.http.stream("GET", "/dashboard/events") as stream:
            lines = stream.aiter_lines()
            (before,) = await events(lines, 1)
            await ask(h)
            after = before
            while not after["now"]["requests"]:  # one a second, however long the answer took
                (after,) = await events(lines, 1)
            assert before["now"]["requests"] == 0 and after["now"]["requests"] == 1
            h.router.door.admission.draining = True
            assert len(await events(lines, 100)) < 100, "the stream has ended"

    asyncio.run(check())


def _standing(number: int) -> Standing:
    member = Member(
        worker_id=f"decode-{number:03}",
        epoch=f"{number:016}",
        role=Phase.DECODE,
        address="127.0.0.1:1",
        model="fake",
        compat_key="key",
    )
    blocks = {"free": 100_000, "running": 100_000, "cached": 100_000, "leased": 1, "importing": 1}
    load = LoadReport(num_running=5, kv_blocks=blocks)
    return Standing(member, load, connected=True, retired=False, num_attempts=5)
