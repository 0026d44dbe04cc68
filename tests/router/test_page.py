"""The page in a real browser, before a real router with workers that have no model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_browser import Browser, Page, browsing, locate
from fakes_house import House, Texts, house
from fakes_loop_thread import LoopThread
from fakes_tenants import file_settings, keyed_house, make_key
from fakes_worker import FakeWorker

from bench.tandem_server import free_port
from core.load import LoadReport, StepTotals
from core.request import AttemptFailed
from router.life.timeline import RequestTimeline
from router.observe.origin import Origin
from router.request_spec import RequestSpec
from router.tenants.call import Call

PUBLIC: dict[str, dict[str, object]] = {"observability": {"debug_requests": "public"}}
DESKTOP, PHONE = (1280, 900), (390, 844)
RATE, SHORT_S, LONG_S = 200, 5, 300
"""Requests a second that end while a page looks on, and for how many seconds."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing(locate()) as running:
        yield running


class Shown:
    """A house in a thread of its own, for tests that drive a browser."""

    def __init__(self, loop: LoopThread, made: House) -> None:
        self.loop = loop
        self.house = made
        self.url = f"http://127.0.0.1:{made.ports.http}/dashboard"

    def ask(self, number: int = 1, max_tokens: int = 4) -> None:
        """Requests, one after the other."""

        async def send() -> None:
            body = {
                "model": "fake",
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": max_tokens,
            }
            for _ in range(number):
                answer = await self.house.http.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200

        self.loop.run(send())

    def report(self, worker: FakeWorker, load: LoadReport) -> None:
        async def tell() -> None:
            worker.report(load)

        self.loop.run(tell())


@contextlib.contextmanager
def shown(context: contextlib.AbstractAsyncContextManager[House]) -> Iterator[Shown]:
    with LoopThread() as loop:
        stack = contextlib.AsyncExitStack()
        made = loop.run(stack.enter_async_context(context))
        try:
            yield Shown(loop, made)
        finally:
            loop.run(stack.aclose())


@pytest.fixture(scope="module")
def show(texts: Texts) -> Iterator[Shown]:
    with shown(house(texts, prefill=2, decode=2, overrides=PUBLIC)) as ready:
        yield ready


@pytest.fixture
def page(browser: Browser, show: Shown) -> Iterator[Page]:
    """The page, which must not have complained at the end."""
    with browser.page() as opened:
        opened.resize(*DESKTOP)
        opened.open(show.url)
        opened.until("document.querySelector('#state').innerText === 'ready'")
        yield opened
        assert opened.problems == []


def test_the_page_shows_every_worker_and_what_its_kv_blocks_hold(page: Page, show: Shown) -> None:
    page.until("document.querySelectorAll('.worker').length === 4")
    steps = StepTotals(1, 1, 1, 1, 1, mfu=0.38, mbu=0.12)
    blocks = {"free": 10, "cached": 20, "running": 60, "importing": 10}
    show.report(show.house.d, LoadReport(num_running=17, kv_blocks=blocks, steps=steps))
    page.until("document.querySelector('#pools').innerText.includes('17 running')")
    shown_text = page.text("#pools")
    assert "70 % KV held" in shown_text and "38 % MFU" in shown_text
    told = page.evaluate(
        "[...document.querySelectorAll('.worker .bar')].map((bar) => bar.ariaLabel)"
    )
    assert "KV blocks: 60 % running, 10 % importing, 20 % cached, 10 % free" in told


def test_numbers_and_lines_change_as_requests_end(page: Page, show: Shown) -> None:
    count = "[...document.querySelectorAll('#request-rows a')].length"
    show.ask(3)
    page.until(f"{count} >= 3")
    page.until("document.querySelector('#tiles').innerText.includes(' ms')")
    page.until("document.querySelector('.chart path.line-a[d*=M]')")
    first = page.text("#request-rows a")
    show.ask(1)
    page.until(f"document.querySelector('#request-rows a').innerText !== {first!r}")


def test_the_chat_streams_an_answer_with_its_times_and_workers(page: Page, show: Shown) -> None:
    page.click("#chat-text")
    page.type("What is a tandem?")
    page.press("Enter", 13)
    page.until("document.querySelector('.turn.assistant .bar')")
    assert page.text(".turn.user") == "What is a tandem?"
    assert len(page.text(".turn.assistant .said")) > 20
    timing = page.text(".turn.assistant .timing")
    assert "tokens 256" in timing and "TTFT" in timing and "TPOT" in timing
    assert "prefill-" in timing and "decode-" in timing
    page.click(".turn.assistant .timing a")
    page.until("document.querySelector('#waterfall[open] .phases')")


def test_an_answer_can_be_stopped_and_its_times_stay(page: Page, show: Shown) -> None:
    async def hold(worker: FakeWorker) -> None:
        worker.gate.clear()

    async def release(worker: FakeWorker) -> None:
        worker.gate.set()

    for worker in show.house.decode:
        show.loop.run(hold(worker))
    try:
        page.click("#chat-text")
        page.type("Never ending")
        page.press("Enter", 13)
        page.until("document.querySelector('.fact-tokens')")
        page.click("#chat-stop")
        page.until("document.querySelector('.turn .error')")
    finally:
        for worker in show.house.decode:
            show.loop.run(release(worker))
    assert page.text(".turn .error") == "Stopped."
    assert "tokens 1" in page.text(".turn .timing")
    page.until("!document.querySelector('#chat-send').disabled")


def test_a_waterfall_shows_phases_and_every_attempt(page: Page, show: Shown) -> None:
    async def fail_once() -> None:
        failed = AttemptFailed("", "transfer_failed", "gone", True, "peer_lost")
        for worker in show.house.decode:
            worker.failures.append(failed)

    show.loop.run(fail_once())
    show.ask(1, max_tokens=8)
    page.until("document.querySelector('#request-rows').innerText.includes('attempts')")
    page.evaluate("document.querySelector('#request-rows a').focus()")
    page.press("Enter", 13)
    page.until("document.querySelector('#waterfall[open] .phases')")
    text = page.text("#waterfall")
    for phase in ("queue", "tokenise", "prefill", "transfer", "decode"):
        assert phase in text
    assert "transfer failed (peer lost)" in text and "Attempt 2" in text
    assert page.evaluate("document.querySelectorAll('#waterfall .lane i.failed').length") >= 1
    page.press("Escape", 27)
    page.until("!document.querySelector('#waterfall[open]')")
    page.until("location.hash === ''")
    page.until("document.activeElement.closest('#request-rows') !== null")


def test_a_waterfall_has_an_address(browser: Browser, show: Shown) -> None:
    show.ask()
    request = next(show.house.router.observer.ring.newest())
    with browser.page() as opened:
        opened.open(f"{show.url}#request={request.request_id}")
        opened.until("document.querySelector('#waterfall[open] .phases')")
        opened.open(f"{show.url}?again#request=nobody")
        opened.until("document.querySelector('#waterfall').innerText.includes('nobody')")


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_theme_is_the_systems_until_somebody_chooses(
    page: Page, show: Shown, system: str
) -> None:
    dark = "getComputedStyle(document.body).backgroundColor === 'rgb(14, 17, 21)'"
    page.prefer(system)
    assert page.evaluate(dark) is (system == "dark")
    page.click("#theme-button")
    assert page.evaluate(dark) is (system == "light")
    page.open(show.url)
    assert page.evaluate(dark) is (system == "light"), "it was remembered"


def test_a_long_name_of_a_model_does_not_break_the_header(browser: Browser, texts: Texts) -> None:
    served: dict[str, dict[str, object]] = {"model": {"served_model_name": "long-name/" * 12}}
    with shown(house(texts, overrides=served)) as named, browser.page() as opened:
        opened.resize(*PHONE, phone=True)
        opened.open(named.url)
        opened.until("document.querySelector('#model').innerText.startsWith('long')")
        assert opened.evaluate("document.documentElement.scrollWidth") == PHONE[0]
        assert opened.evaluate("document.querySelector('header').offsetHeight") < 110


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_scrolls_sideways(page: Page, show: Shown, width: int) -> None:
    page.resize(width, 844, phone=width < 700)
    show.ask(2)
    page.until("document.querySelectorAll('#request-rows a').length >= 2")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("#request-rows a")
    page.until("document.querySelector('#waterfall[open] .phases')")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(
        "(d => d.scrollWidth <= d.clientWidth)(document.querySelector('#waterfall'))"
    )


def test_everything_has_a_name_and_is_reached_by_the_keyboard(page: Page, show: Shown) -> None:
    show.ask()
    page.until("document.querySelector('#request-rows a')")
    tree = page.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "link", "textbox", "spinbutton", "image", "table", "region", "log"}
    nameless = [
        node
        for node in tree
        if node.get("role", {}).get("value") in roles
        and not node["ignored"]
        and not node.get("name", {}).get("value")
    ]
    assert nameless == []
    page.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(60):
        page.press("Tab", 9)
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"skip", "theme-button", "plot", "mono", "chat-log", "chat-text"} <= reached


def test_arrow_keys_look_back_in_a_chart(page: Page, show: Shown) -> None:
    page.until("document.querySelectorAll('.chart path').length")
    page.evaluate("document.querySelector('.plot').focus()")
    page.press("ArrowLeft", 37)
    page.until("document.querySelector('.x-labels').innerText.includes('5 s ago')")


def test_a_key_is_asked_for_kept_in_the_tab_and_sent(
    browser: Browser, texts: Texts, tmp_path: Path
) -> None:
    secret, record = make_key()
    settings = file_settings(tmp_path / "tenants.db")
    with shown(keyed_house(texts, settings, record)) as closed, browser.page() as opened:
        opened.open(closed.url)
        opened.until("document.querySelector('#key-dialog[open]')")
        assert opened.text("#pool-list") == ""
        opened.type("not-a-key")
        opened.press("Enter", 13)
        opened.until("document.querySelector('#key-dialog[open] #key-input').value === ''")
        opened.type(secret)
        opened.press("Enter", 13)
        opened.until("document.querySelector('#state').innerText === 'ready'")
        assert "debug_requests" in opened.text("#requests")
        opened.click("#chat-text")
        opened.type("Hi")
        opened.press("Enter", 13)
        opened.until("document.querySelector('.turn.assistant .bar')")
        opened.open(closed.url)
        opened.until("document.querySelector('#state').innerText === 'ready'")
        assert all("401" in problem for problem in opened.problems)


def test_a_page_comes_back_after_its_router(browser: Browser, texts: Texts) -> None:
    with browser.page() as opened:
        port = free_port()  # nobody takes it while there is no router
        at_port: dict[str, dict[str, object]] = {"router": {"http_port": port, "grpc_port": 0}}
        with shown(house(texts, overrides=at_port)) as first:
            opened.open(first.url)
            opened.until("document.querySelector('#state').innerText === 'ready'")
        opened.until("document.querySelector('#state').innerText === 'connecting'")
        assert "Trying again" in opened.text("#notice")
        with shown(house(texts, overrides=at_port)):
            opened.until("document.querySelector('#state').innerText === 'ready'")
            assert opened.evaluate("document.querySelector('#notice').hidden")


@pytest.mark.parametrize(
    "duration_s",
    [SHORT_S, pytest.param(LONG_S, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_its_memory_does_not_grow_with_the_requests_that_end(
    page: Page, show: Shown, duration_s: int
) -> None:
    show.loop.run(_end_requests(show.house, duration_s=3))
    page.until("document.querySelectorAll('#request-rows a').length > 20")
    heap, nodes, listeners = page.memory()
    show.loop.run(_end_requests(show.house, duration_s), timeout_s=duration_s + 60)
    heap_after, nodes_after, listeners_after = page.memory()
    assert heap_after - heap < 300_000
    assert nodes_after - nodes < 200
    assert listeners_after - listeners < 20


async def _end_requests(made: House, duration_s: float) -> None:
    """RATE requests a second pass the router's books, as any do; no worker is kept busy."""
    observer, loop = made.router.observer, asyncio.get_running_loop()
    spec = RequestSpec(model="fake", prompt="x")
    began, sent = loop.time(), 0
    while (elapsed_s := loop.time() - began) < duration_s:
        while sent < RATE * elapsed_s:
            sent += 1
            now = made.router.door.clock.now()
            timeline = RequestTimeline(now - 0.2, started=now - 0.15, first_token=now - 0.1)
            record = observer.begin(f"{sent:08}{began}", spec, Origin(), timeline, Call())
            observer.entered(record)
            observer.left(record, "finished", None)
        await asyncio.sleep(0.02)
