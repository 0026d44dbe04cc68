"""`tandem keys` and `tandem usage`, on a file and on Redis."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.keys import expiry_of
from cli.main import build_app
from core.errors import ConfigError
from state.api_key import is_secret_of, split_key
from state.file_tenants import FileTenants
from state.tenants import KeyLimits, PriorityClass, Settlement, UsageRow

RUNNER = CliRunner()


def tandem(*arguments: str) -> Result:
    return RUNNER.invoke(build_app(), arguments)


@pytest.fixture(params=["file", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Settings that name an empty store."""
    if request.param == "file":
        return ["--set", f"tenants.file={tmp_path / 'tenants.db'}"]
    url = request.getfixturevalue("redis_url")
    settings = ("state.backend=redis", f"state.redis_url={url}", f"state.namespace={tmp_path.name}")
    return [word for setting in settings for word in ("--set", setting)]


def test_a_key_is_printed_once_listed_and_revoked(store: list[str]) -> None:
    made = tandem("keys", "create", "alice", "--requests-per-minute", "60", *store)
    assert made.exit_code == 0
    key = made.stdout.strip()
    parts = split_key(key)
    assert parts is not None
    key_id, secret = parts
    listed = tandem("keys", "list", *store).stdout
    assert secret not in listed
    assert key_id in listed and "alice" in listed and "60 requests/min" in listed
    assert "good" in listed
    assert tandem("keys", "revoke", key_id, *store).exit_code == 0
    assert "revoked" in tandem("keys", "list", *store).stdout
    unknown = tandem("keys", "revoke", "nobody", *store)
    assert isinstance(unknown.exception, ConfigError)


def test_all_options_end_up_in_the_record(tmp_path: Path) -> None:
    file = tmp_path / "tenants.db"
    options = (
        *("--priority-class", "batch", "--tokens-per-minute", "2", "--max-concurrency", "3"),
        *("--daily-tokens", "4", "--pinned-tokens", "5", "--expires", "2d", "--share-cache"),
        *("--model", "m", "--endpoint", "/v1/chat", "--set", f"tenants.file={file}"),
    )
    key = tandem("keys", "create", "bob", *options).stdout.strip()
    (record,) = asyncio.run(FileTenants(file, 5.0).keys())
    parts = split_key(key)
    assert parts is not None and is_secret_of(parts[1], record)
    assert record.priority_class is PriorityClass.BATCH
    assert record.limits == KeyLimits(None, 2, 3, 4, 5)
    assert record.expires_at is not None and 0 <= record.expires_at - time.time() <= 2 * 86_400
    assert not record.isolate_cache
    assert (record.models, record.endpoints) == (("m",), ("/v1/chat",))


@pytest.mark.parametrize(
    "options",
    [("--daily-tokens", "0"), ("--priority-class", "urgent"), ("--max-concurrency", "many")],
)
def test_what_makes_no_sense_is_refused(store: list[str], options: tuple[str, ...]) -> None:
    assert tandem("keys", "create", "x", *options, *store).exit_code == 2


def test_expiries_are_dates_or_times_from_now() -> None:
    assert expiry_of("90m", 1000.0) == 1000.0 + 5400
    assert expiry_of("2026-11-30", 0.0) == 1_795_996_800.0
    assert expiry_of("2026-11-30T01:00:00+01:00", 0.0) == 1_795_996_800.0
    with pytest.raises(ConfigError, match="soon"):
        expiry_of("soon", 0.0)


def test_usage_is_shown_by_day_and_key(tmp_path: Path) -> None:
    file = tmp_path / "tenants.db"
    row = UsageRow("2026-11-30", "k1", "m", False, 2, 80, 60, 12, 38, 98_000)
    settlement = Settlement("k1", "2026-11-30", KeyLimits(), usage=(row,))
    asyncio.run(FileTenants(file, 5.0).settle("r", 1, [settlement]))
    settings = ("--set", f"tenants.file={file}")
    lines = tandem("usage", "--day", "2026-11-30", *settings).stdout.splitlines()
    assert lines[1].split() == ["k1", "m", "online", "2", "80", "60", "12", "38", "0", "0.000098"]
    other = tandem("usage", "--day", "2026-11-30", "--key", "k2", *settings)
    assert len(other.stdout.splitlines()) == 1
    assert isinstance(tandem("usage", "--day", "today", *settings).exception, ConfigError)
