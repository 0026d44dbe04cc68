"""`tandem keys`: who may use the API, and how much of it."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from cli.options import ConfigFile, Settings, load

if TYPE_CHECKING:
    from state.tenants import KeyRecord, TenantStore

T = TypeVar("T")

ANSWER_TIMEOUT_S = 5.0
UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}

keys_app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys.")

Limit = Annotated[int | None, typer.Option(min=1, show_default=False)]


@keys_app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is, for lists and metrics.")],
    priority_class: Annotated[
        Literal["interactive", "standard", "batch"],
        typer.Option(help="Higher classes go strictly first: interactive, standard, batch."),
    ] = "standard",
    requests_per_minute: Limit = None,
    tokens_per_minute: Limit = None,
    max_concurrency: Limit = None,
    daily_tokens: Limit = None,
    pinned_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Prompt tokens that are pinned at once (cache_control); 0: none. Unset: as "
            "tenants.pinned_tokens says.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            help="A date (2027-01-31, UTC), or a time from now: 30d, 12h.", show_default=False
        ),
    ] = None,
    isolate_cache: Annotated[
        bool,
        typer.Option(
            "--isolate-cache/--share-cache",
            help="Whether cached prefixes are this key's alone, or shared with others that share.",
        ),
    ] = True,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model it may ask; repeat for more. Unset: all.", show_default=False),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="A path it may call, with all below it (/v1/chat); repeat for more. Unset: all.",
            show_default=False,
        ),
    ] = None,
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Make a key. It is printed once and stored nowhere: only a hash of it is.

    Limits that are not given don't exist.
    """
    from state.api_key import new_key
    from state.tenants import KeyLimits, PriorityClass

    now = time.time()
    key, record = new_key(
        name,
        now=now,
        priority_class=PriorityClass(priority_class),
        limits=KeyLimits(
            requests_per_minute, tokens_per_minute, max_concurrency, daily_tokens, pinned_tokens
        ),
        expires_at=None if expires is None else expiry_of(expires, now),
        isolate_cache=isolate_cache,
        models=model or (),
        endpoints=endpoint or (),
    )
    with_store(file, settings, lambda store: store.put_key(record))
    typer.echo(key)
    typer.echo(f"key {record.key_id} of {name}; it is not shown again", err=True)


@keys_app.command("list")
def list_keys(file: ConfigFile = None, settings: Settings = None) -> None:
    """Show all keys with their limits, revoked and expired ones included."""
    records = with_store(file, settings, lambda store: store.keys())
    for record in records:
        typer.echo(line_of(record, time.time()))
    if not records:
        typer.echo("no keys; `tandem keys create NAME` makes one", err=True)


@keys_app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Its id, as `tandem keys list` shows it.")],
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Refuse a key from now on; routers notice within tenants.refresh_s."""
    from core.errors import ConfigError

    async def end(store: TenantStore) -> KeyRecord | None:
        record = await store.get_key(key_id)
        if record is None or record.revoked_at is not None:
            return record
        revoked = dataclasses.replace(record, revoked_at=time.time())
        await store.put_key(revoked)
        return revoked

    record = with_store(file, settings, end)
    if record is None:
        raise ConfigError(f"there is no key {key_id!r}; `tandem keys list` shows them")
    typer.echo(f"key {record.key_id} of {record.name} is revoked")


def with_store(
    file: ConfigFile, settings: Settings, work: Callable[[TenantStore], Awaitable[T]]
) -> T:
    """Does it on the tenants' store that the configuration means, which is closed afterwards."""
    from state.tenant_stores import open_tenants

    config = load(file, settings)

    async def run() -> T:
        store = open_tenants(config, timeout_s=ANSWER_TIMEOUT_S)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def expiry_of(text: str, now: float) -> float:
    """Unix seconds of a date (its beginning, UTC) or of a time from `now`. Raises ConfigError."""
    from core.errors import ConfigError

    if match := re.fullmatch(r"(\d{1,5})([mhdw])", text):
        return now + int(match[1]) * UNITS_S[match[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--expires {text!r}: neither a date nor a time like 30d") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def line_of(record: KeyRecord, now: float) -> str:
    """One key, for a person."""
    names = {
        "requests_per_minute": "requests/min",
        "tokens_per_minute": "tokens/min",
        "max_concurrency": "at once",
        "daily_tokens": "tokens/day",
        "pinned_tokens": "tokens pinned",
    }
    limits = [
        f"{value} {names[name]}"
        for name, value in dataclasses.asdict(record.limits).items()
        if value is not None
    ]
    state = "good"
    if record.revoked_at is not None:
        state = "revoked"
    elif record.expires_at is not None:
        until = datetime.fromtimestamp(record.expires_at, UTC).strftime("%Y-%m-%d %H:%M")
        state = f"{'until' if record.expires_at > now else 'expired'} {until}"
    cache = "own cache" if record.isolate_cache else "shared cache"
    parts = [record.key_id, record.priority_class.value, state, cache, *limits, record.name]
    return "  ".join(parts)
