"""API keys as their owners hold them: `sk-tandem-ID-SECRET`.

The id finds the stored record; of the secret only a hash is stored. It has 256 random bits, so that
a fast hash is as good as a slow one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence

from state.tenants import KeyLimits, KeyRecord, PriorityClass

_SHAPE = re.compile(r"sk-tandem-([0-9a-f]{12})-([A-Za-z0-9_-]{43})")
MAX_NAME_LENGTH = 128


def new_key(
    name: str,
    *,
    now: float,
    priority_class: PriorityClass = PriorityClass.STANDARD,
    limits: KeyLimits | None = None,
    expires_at: float | None = None,
    isolate_cache: bool = True,
    models: Sequence[str] = (),
    endpoints: Sequence[str] = (),
) -> tuple[str, KeyRecord]:
    """A new key, to be shown once, and what is stored of it. `now` is Unix time in seconds."""
    key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    record = KeyRecord(
        key_id=key_id,
        name=name[:MAX_NAME_LENGTH],
        secret_hash=_hash(secret),
        priority_class=priority_class,
        limits=limits or KeyLimits(),
        created_at=now,
        expires_at=expires_at,
        isolate_cache=isolate_cache,
        cache_salt=secrets.token_hex(16),
        models=tuple(models),
        endpoints=tuple(endpoints),
    )
    return f"sk-tandem-{key_id}-{secret}", record


def split_key(key: str) -> tuple[str, str] | None:
    """Id and secret; None for what can't be a key of ours."""
    match = _SHAPE.fullmatch(key)
    return None if match is None else (match[1], match[2])


def is_secret_of(secret: str, record: KeyRecord | None) -> bool:
    """Takes as long for a wrong secret, and for no record, as for the right one."""
    expected = record.secret_hash if record is not None else "0" * 64
    return hmac.compare_digest(_hash(secret), expected)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
