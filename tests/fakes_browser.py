"""A real Chromium without a screen, driven over its DevTools protocol through a pair of pipes.

Found on PATH, else fetched from Debian; nothing is installed. https://chromedevtools.github.io/
devtools-protocol/ names the methods. Messages are JSON objects that end with a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from debian_packages import Binary, from_debian

DEADLINE_S = 60.0
CACHE = Path.home() / ".cache" / "tandem" / "test-chromium"
_PACKAGE = "chromium-headless-shell"
_PROGRAM = "usr/lib/chromium/chromium-headless-shell"
_FLAGS = (
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests run as root in containers, where it can't be
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--js-flags=--expose-gc",
    "--force-color-profile=srgb",
)
_START = """
import os, sys
read, write = int(sys.argv[1]), int(sys.argv[2])
high = [os.dup(fd) for fd in (read, write)]
while min(high) < 10:
    high = [os.dup(fd) for fd in high]
os.dup2(high[0], 3)
os.dup2(high[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes the browser, which reads descriptor 3 and writes 4."""


class BrowserError(RuntimeError):
    """The browser refused a command, or a script in it threw."""


def locate() -> Binary:
    """A Chromium that runs here. Raises what a failing fetch raises."""
    for name in (_PACKAGE, "chromium", "google-chrome"):
        found = shutil.which(name)
        if found is not None:
            return Binary(Path(found))
    return from_debian(_PACKAGE, _PROGRAM, CACHE)


class Browser:
    """One browser process. Any thread may use it, one at a time."""

    def __init__(self, binary: Binary, directory: Path) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        command = [sys.executable, "-c", _START, str(theirs_in), str(theirs_out)]
        command += [str(binary.path), *_FLAGS, f"--user-data-dir={directory}"]
        self._process = subprocess.Popen(
            command,
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **binary.environ, "HOME": str(directory)},
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._to = os.fdopen(ours_out, "wb", buffering=0)
        self._from = os.fdopen(ours_in, "rb", buffering=0)
        self._ids = count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._reader = threading.Thread(target=self._read, name="browser", daemon=True)
        self._reader.start()

    @contextlib.contextmanager
    def page(self) -> Iterator[Page]:
        """A page that shares nothing with others, for the length of the block."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        try:
            for domain in ("Page", "Runtime", "Log", "Network", "HeapProfiler", "Audits"):
                page.send(f"{domain}.enable")
            yield page
        finally:
            self.send("Target.disposeBrowserContext", browserContextId=context)
            del self._pages[attached["sessionId"]]

    def send(self, method: str, session_id: str = "", **params: object) -> dict[str, Any]:
        """What the browser answers. Raises BrowserError."""
        number = next(self._ids)
        message: dict[str, object] = {"id": number, "method": method, "params": params}
        if session_id:
            message["sessionId"] = session_id
        answer = self._answers[number] = queue.Queue()
        self._to.write(json.dumps(message).encode() + b"\0")
        try:
            said = answer.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise BrowserError(f"{method}: no answer") from None
        finally:
            del self._answers[number]
        if "error" in said:
            raise BrowserError(f"{method}: {said['error']['message']}")
        result: dict[str, Any] = said["result"]
        return result

    def close(self) -> None:
        """Ends it, and what it started."""
        with contextlib.suppress(BrowserError, OSError):
            self.send("Browser.close")
        try:
            self._process.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._to.close()
        self._reader.join(DEADLINE_S)
        self._from.close()

    def _read(self) -> None:
        left = b""
        while chunk := self._from.read(1 << 16):
            *whole, left = (left + chunk).split(b"\0")
            for data in whole:
                self._take(json.loads(data))
        for answer in list(self._answers.values()):
            answer.put({"error": {"message": "the browser is gone"}})

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]].put(message)
        elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
            page.hear(message["method"], message["params"])


class Page:
    """One page. `problems` has everything that its console would show as wrong."""

    def __init__(self, browser: Browser, session_id: str) -> None:
        self._browser = browser
        self._session_id = session_id
        self._heard: dict[str, threading.Event] = defaultdict(threading.Event)
        self.problems: list[str] = []

    def send(self, method: str, **params: object) -> dict[str, Any]:
        return self._browser.send(method, self._session_id, **params)

    def open(self, url: str) -> None:
        """Returns once the page and its files are loaded."""
        loaded = self._heard["Page.loadEventFired"]
        loaded.clear()
        self.send("Page.navigate", url=url)
        assert loaded.wait(DEADLINE_S), f"{url} did not load: {self.problems}"

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise. Raises BrowserError."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description", details["text"])
            raise BrowserError(f"{expression}: {text}")
        return answer["result"].get("value")

    def until(self, condition: str) -> Any:
        """Waits until a JavaScript expression is true; its value."""
        try:
            return self.evaluate(
                "new Promise((found) => { const look = () => { let value = null;"
                f" try {{ value = ({condition}); }} catch {{}}"
                " if (value) found(value); else setTimeout(look, 40); }; look(); })"
            )
        except BrowserError as error:
            text = self.evaluate("document.body.innerText.slice(0, 3000)")
            raise BrowserError(f"{error}; problems: {self.problems}; it shows:\n{text}") from None

    def text(self, selector: str) -> str:
        value: str = self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
        return value

    def click(self, selector: str) -> None:
        """A click of the mouse into the middle of the first such element."""
        quoted = json.dumps(selector)
        x, y = self.evaluate(
            f"(() => {{ const node = document.querySelector({quoted});"
            " node.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const box = node.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """A key that types nothing, with its Windows key code."""
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **named, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **named)

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """A window of this size in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def prefer(self, scheme: str) -> None:
        """The system's theme: `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A PNG of the page, or of what the window shows."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def memory(self) -> tuple[int, int, int]:
        """Bytes of live JavaScript, nodes and listeners, when all garbage is gone."""
        for _ in range(2):
            self.send("HeapProfiler.collectGarbage")
        heap = self.send("Runtime.getHeapUsage")["usedSize"]
        counters = self.send("Memory.getDOMCounters")
        return heap, counters["nodes"], counters["jsEventListeners"]

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """An event of the browser's; called by its reader."""
        match method:
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(f"console: {params['args']}")
            case "Runtime.exceptionThrown":
                self.problems.append(f"exception: {params['exceptionDetails']}")
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                self.problems.append(f"log: {entry['text']} {entry.get('url', '')}")
            case "Audits.issueAdded":
                self.problems.append(f"issue: {params['issue']}")
        self._heard[method].set()


@contextlib.contextmanager
def browsing(binary: Binary) -> Iterator[Browser]:
    """A browser for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="tandem-browser-", ignore_cleanup_errors=True) as home:
        browser = Browser(binary, Path(home))
        try:
            yield browser
        finally:
            browser.close()
