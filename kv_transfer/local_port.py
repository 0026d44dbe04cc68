"""Data ports for processes of the same machine and user: a socket without a file (Linux).

Its name is abstract: nothing stays behind after any death, and who is in another network namespace
or on another machine can't reach it, and so takes the network, whose cuts and rules hold for it.
Anybody on the machine can see the name and connect; the kernel tells both sides the other's user,
and who is of another one is cut off before a word is read. Then as link_port.py says.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct

from kv_transfer.link_port import LinkPort, show

LocalPort = LinkPort[socket.socket]

_CREDENTIALS = struct.Struct("3i")
"""Linux' struct ucred: process, user and group."""
_NAME_BYTES = 16


class NotLocalError(ConnectionError):
    """Nobody of our user waits under this name where we are."""


def listen_locally() -> tuple[LocalPort, str]:
    """Waits for links, and says under which name. Raises OSError."""
    name = f"tandem-kv-{secrets.token_hex(_NAME_BYTES)}"
    listener = _new_socket()
    try:
        listener.bind(_address(name))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return LinkPort(listener, _screen), name


def dial_local(at: str, name: str, timeout_s: float) -> socket.socket:
    """A connection to where `name` is awaited, by a port called `at`, which keeps boundaries of
    messages. Raises OSError: NotLocalError, ConnectionError if we are not welcome."""
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(_new_socket())
        connection.settimeout(timeout_s)
        try:
            connection.connect(_address(at))
            _screen(connection)
        except TimeoutError:
            raise
        except OSError as error:
            raise NotLocalError(str(error)) from error
        show(connection, name)
        stack.pop_all()
    return connection


def _screen(connection: socket.socket) -> socket.socket:
    """Raises OSError unless the peer, when it connected or began to listen, was of our user."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(told)
    if user != os.geteuid():
        raise PermissionError(f"the peer belongs to user {user}")
    return connection


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _address(name: str) -> str:
    return f"\0{name}"
