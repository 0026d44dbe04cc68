"""gRPC settings of the control streams: for the server that P runs, the channels that D opens."""

from __future__ import annotations

MAX_CONTROL_MESSAGE_BYTES = 16 * 1024 * 1024
"""Control messages are small; the largest holds the first tokens of all choices."""


def server_options(timeout_s: float) -> list[tuple[str, int]]:
    """Options of a server that serves `KvTransfer`: pings welcome, its port not shared."""
    ping_ms = _ping_ms(timeout_s)
    return [
        *_common_options(timeout_s),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", ping_ms // 2),
        ("grpc.http2.min_ping_interval_without_data_ms", ping_ms // 2),
        ("grpc.so_reuseport", 0),
    ]


def channel_options(timeout_s: float) -> list[tuple[str, int | str]]:
    """Options of a channel to P.

    Its subchannels are its own: a shared one to a restarted P would sit out its reconnect backoff.
    """
    return [*_common_options(timeout_s), ("grpc.use_local_subchannel_pool", 1)]


def _common_options(timeout_s: float) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", MAX_CONTROL_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_CONTROL_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _ping_ms(timeout_s)),
        ("grpc.keepalive_timeout_ms", int(timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _ping_ms(timeout_s: float) -> int:
    """Heartbeats notice a silent peer; pings only clear away dead connections, so they are rare."""
    return max(1000, int(timeout_s * 1000))
