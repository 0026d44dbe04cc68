"""The pieces of a stream, framed by us: byte for byte what h11 would have sent."""

from __future__ import annotations

from collections.abc import Callable

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.http.protocol import StreamingConnection

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def as_event(connection: h11.Connection, piece: bytes) -> bytes:
    return connection.send(h11.Data(data=piece)) or b""


def framed(connection: h11.Connection, piece: bytes) -> bytes:
    assert isinstance(connection, StreamingConnection)
    return connection.framed(piece)


def answered(
    connection: h11.Connection,
    asked: bytes,
    length: int | None,
    pieces: list[bytes],
    send_piece: Callable[[h11.Connection, bytes], bytes] = as_event,
) -> list[bytes]:
    """What each event of two answers in a row becomes on the wire."""
    sent: list[bytes] = []
    while connection.our_state is not h11.MUST_CLOSE and len(sent) <= len(pieces) + 2:
        connection.receive_data(asked)
        assert isinstance(connection.next_event(), h11.Request)
        assert isinstance(connection.next_event(), h11.EndOfMessage)
        headers = [] if length is None else [("content-length", str(length))]
        head = h11.Response(status_code=200, headers=headers, reason=b"OK")
        sent.append(connection.send(head) or b"")
        sent += [send_piece(connection, piece) for piece in pieces]
        sent.append(connection.send(h11.EndOfMessage()) or b"")
        if connection.our_state is h11.DONE:
            connection.start_next_cycle()
    return sent


@pytest.mark.parametrize("has_length", [False, True])
@pytest.mark.parametrize("asked", [GET, GET.replace(b"1.1", b"1.0")])
@given(pieces=st.lists(st.binary(max_size=40), max_size=5))
def test_an_answer_is_what_h11_makes_of_it(
    asked: bytes, has_length: bool, pieces: list[bytes]
) -> None:
    length = sum(map(len, pieces)) if has_length else None
    theirs = answered(h11.Connection(h11.SERVER), asked, length, pieces)
    for send_piece in (as_event, framed):
        ours = answered(StreamingConnection(h11.SERVER), asked, length, pieces, send_piece)
        assert ours == theirs


def test_the_head_of_an_answer_has_no_body() -> None:
    asked = GET.replace(b"GET", b"HEAD")
    ours, theirs = (
        answered(connection, asked, None, [b"", b""])
        for connection in (StreamingConnection(h11.SERVER), h11.Connection(h11.SERVER))
    )
    assert ours == theirs


@pytest.mark.parametrize("send_piece", [as_event, framed])
def test_a_piece_after_the_end_is_refused(
    send_piece: Callable[[h11.Connection, bytes], bytes],
) -> None:
    connection = StreamingConnection(h11.SERVER)
    answered(connection, GET, None, [b"piece"])
    with pytest.raises(h11.LocalProtocolError):
        send_piece(connection, b"more")
