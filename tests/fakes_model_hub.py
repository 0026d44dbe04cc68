"""A model hub on this machine: real HTTP, the few routes that fetching a snapshot takes."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class ModelHub:
    """What the hub holds and what it was asked. Files change the commit, as on the real one."""

    model: str
    files: Mapping[str, bytes]
    token: str | None = None
    """If set, requests must bear it."""
    cut_at_bytes: dict[str, int] = field(default_factory=dict)
    """Files whose next transfer breaks after so many bytes."""
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and Range header of each request."""
    endpoint: str = ""

    @property
    def commit(self) -> str:
        digest = hashlib.sha1()
        for name, data in sorted(self.files.items()):
            digest.update(name.encode() + b"\0" + data)
        return digest.hexdigest()

    def downloads(self) -> list[str]:
        """Files that were sent, in alphabetical order."""
        gets = (path for method, path, _ in self.requests if method == "GET")
        return sorted(path.rsplit("/", 1)[1] for path in gets if "/resolve/" in path)


@contextmanager
def serving(hub: ModelHub) -> Iterator[ModelHub]:
    """Serves the hub on a free port; `hub.endpoint` is its address."""
    server = _Server(hub)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def __init__(self, hub: ModelHub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server.hub
        hub.requests.append((self.command, self.path, self.headers.get("Range", "")))
        path = self.path.partition("?")[0]
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._refuse(401, "GatedRepo")
        elif path.startswith(f"/api/models/{hub.model}/revision/"):
            self._json({"id": hub.model, "sha": hub.commit, "siblings": []})
        elif path.startswith(f"/api/models/{hub.model}/tree/"):
            self._json([self._entry(name, data) for name, data in hub.files.items()])
        elif name := re.fullmatch(rf"/{hub.model}/resolve/{hub.commit}/(.+)", path):
            self._file(name[1], hub.files[name[1]])
        else:
            self._refuse(404, "RepoNotFound")

    def _entry(self, name: str, data: bytes) -> dict[str, object]:
        oid = hashlib.sha1(data).hexdigest()
        return {"type": "file", "path": name, "size": len(data), "oid": oid}

    def _json(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self._send(data, len(data))

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self._send(b"", 0)

    def _file(self, name: str, data: bytes) -> None:
        hub = self.server.hub
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", hub.commit)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        rest = data[start:]
        cut = hub.cut_at_bytes.pop(name, None) if self.command == "GET" else None
        self._send(rest if cut is None else rest[:cut], len(rest))

    def _send(self, data: bytes, length: int) -> None:
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
        if len(data) < length:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Silent: what was asked is in `requests`."""
