"""Lets the pieces of a stream go to the connection itself, past who has seen the answer's head.

Middleware wraps `send` to see or change how an answer begins. All that it does with a body is to
pass it on, piece by piece, which takes 3 us a token where there are five of them; a message and an
event for each piece take as much again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Scope, Send

PIECES = "tandem.pieces"
"""Where in a scope's state a connection says who takes them."""

SendPiece = Callable[[bytes], Awaitable[None]]
"""Takes the next piece of an answer's body, as soon as the client has room for it."""


def piece_sender(scope: Scope, send: Send) -> SendPiece:
    """For the body of an answer whose head was sent: the connection, or `send` if it takes none."""
    direct: SendPiece | None = scope.get("state", {}).get(PIECES)
    return as_messages(send) if direct is None else direct


def as_messages(send: Send) -> SendPiece:
    """Pieces as ASGI has them."""

    async def send_piece(piece: bytes) -> None:
        await send({"type": "http.response.body", "body": piece, "more_body": True})

    return send_piece
