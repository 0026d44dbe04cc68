"""Names and seeds the router mints. Inside, a request is only ever known by these."""

from __future__ import annotations

import secrets

MAX_CLIENT_ID_LENGTH = 128


def new_request_id() -> str:
    return secrets.token_hex(16)


def new_transfer_id() -> str:
    """Unique for ever: KV on its way is addressed by it."""
    return secrets.token_hex(16)


def new_router_id() -> str:
    return f"router-{secrets.token_hex(8)}"


def new_seed() -> int:
    """63 random bits, so that it can be sent back as a client's `seed`."""
    return secrets.randbits(63)


def client_request_id(sent: str | None) -> str:
    """What a client calls its request, made harmless; empty if nothing is left of it.

    Never a key inside, since two clients may choose the same: it is echoed, and names a request to
    be cancelled where it names only one.
    """
    printable = "".join(c for c in sent or "" if " " <= c <= "~")
    return printable[:MAX_CLIENT_ID_LENGTH].strip()


def echoed_request_id(sent: str | None, own_id: str) -> str:
    """What `x-request-id` of the answer says: the client's, or ours."""
    return client_request_id(sent) or own_id
