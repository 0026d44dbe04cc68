"""How a process writes its log: to standard error, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

from core.config import LoggingConfig

CHATTY = ("httpx", "httpcore", "asyncio", "urllib3", "filelock")
"""Libraries that log every request as info."""
TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the trace if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure_logging(config: LoggingConfig) -> None:
    """Makes the root logger write to standard error. Replaces what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if config.json_lines else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    if config.level != "debug":
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
