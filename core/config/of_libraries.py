"""Settings of libraries that can be told them in the environment only."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_TELLING = threading.Lock()


@contextlib.contextmanager
def library_setting(name: str, value: str) -> Iterator[None]:
    """What a library reads within finds this value of a variable; then all is as it was before.

    One thread at a time: the environment is the whole process's.
    """
    with _TELLING:
        before = os.environ.get(name)
        os.environ[name] = value
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before
