"""How a process writes its log: to standard error, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path

from core.config import Config
from core.log_context import LogContext, current_log_context

CHATTY = ("httpx", "httpcore", "asyncio", "urllib3", "filelock", "opentelemetry")
"""Libraries that log every request as info."""
REQUEST_FIELDS = ("request_id", "trace_id", "tenant", "worker")
TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, which process wrote it, and the
    traceback if there is one.

    Lines about a request have its `request_id`, and `trace_id`, `tenant` and `worker` where they
    are known: from the task that serves it, or from the `extra` of the line itself.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self.converter = time.gmtime
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._process:
            entry["process"] = self._process
        entry |= request_fields(record)
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def request_fields(record: logging.LogRecord) -> dict[str, str]:
    """What is known of the request that a line is about."""
    context = current_log_context() or LogContext()
    values = {
        name: str(getattr(record, name, "") or getattr(context, name)) for name in REQUEST_FIELDS
    }
    return {name: value for name, value in values.items() if value}


def configure_logging(config: Config, process: str = "") -> None:
    """Makes the root logger write to standard error. Replaces what was configured before.

    `process` is who writes: a worker's id, or `router`.
    """
    handler = logging.StreamHandler(sys.stderr)
    as_json = config.observability.log_format == "json"
    handler.setFormatter(JsonLines(process) if as_json else logging.Formatter(TEXT_FORMAT))
    level = config.logging.level
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level != "debug":
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)


def redirect_output(file: Path) -> None:
    """Sends standard output and error to the end of `file`, native libraries' output included."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
