"""gRPC between our processes with real certificates: who is let in, and who is not."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fakes_certificates import EXPIRES_AT_ONCE_DAYS, certificates_in, new_certificates
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from core.config import TlsConfig
from core.errors import ConfigError
from protos.secure_grpc import PeerCertificates, bind_peers, is_loopback, open_channel

DEADLINE_S = 20.0
NAMED = (("grpc.ssl_target_name_override", "tandem"),)


@pytest.fixture
def tls(tmp_path: Path) -> TlsConfig:
    return new_certificates(tmp_path / "ours")


@contextlib.asynccontextmanager
async def serving(certificates: PeerCertificates) -> AsyncIterator[str]:
    """A health service; its address."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(health_aio.HealthServicer(), server)
    port = bind_peers(server, "127.0.0.1:0", certificates)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def check(channel: grpc.aio.Channel) -> None:
    """One call on a channel of its own. Raises AioRpcError."""
    async with channel:
        health = health_pb2_grpc.HealthStub(channel)
        await health.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)


async def refusal(channel: grpc.aio.Channel) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await check(channel)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE, "at once, not at the deadline"
    return str(error.value.details())


def raw(address: str, tls: TlsConfig, *, ca: str | None = None) -> grpc.aio.Channel:
    """A client that has not looked at its own files."""
    assert tls.ca and tls.key and tls.certificate
    credentials = grpc.ssl_channel_credentials(
        Path(ca or tls.ca).read_bytes(),
        Path(tls.key).read_bytes(),
        Path(tls.certificate).read_bytes(),
    )
    return grpc.aio.secure_channel(address, credentials, options=NAMED)


def on_server(tls: TlsConfig | None, test: Callable[[str], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        async with serving(None if tls is None else certificates_in(tls)) as address:
            await test(address)

    asyncio.run(run())


def test_who_has_a_certificate_of_the_authority_is_served(tls: TlsConfig) -> None:
    on_server(tls, lambda address: check(open_channel(address, certificates_in(tls))))


def test_without_certificates_all_is_plain() -> None:
    on_server(None, lambda address: check(open_channel(address, None)))


def test_strangers_are_refused_at_once_and_the_server_serves_on(
    tls: TlsConfig, tmp_path: Path
) -> None:
    foreign = new_certificates(tmp_path / "foreign")
    (tmp_path / "expired").mkdir()
    for name in ("ca.pem", "ca-key.pem"):
        shutil.copy(tmp_path / "ours" / name, tmp_path / "expired" / name)
    expired = new_certificates(tmp_path / "expired", days=EXPIRES_AT_ONCE_DAYS)
    assert tls.ca
    no_certificate = grpc.ssl_channel_credentials(Path(tls.ca).read_bytes())

    async def test(address: str) -> None:
        await refusal(grpc.aio.secure_channel(address, no_certificate, options=NAMED))
        await refusal(raw(address, foreign, ca=tls.ca))
        await refusal(raw(address, expired))
        await refusal(grpc.aio.insecure_channel(address))
        await check(open_channel(address, certificates_in(tls)))

    on_server(tls, test)


def test_a_client_refuses_a_server_of_another_authority_or_for_another_name(
    tls: TlsConfig, tmp_path: Path
) -> None:
    foreign = new_certificates(tmp_path / "foreign")
    (tmp_path / "renamed").mkdir()
    for name in ("ca.pem", "ca-key.pem"):
        shutil.copy(tmp_path / "ours" / name, tmp_path / "renamed" / name)
    renamed = new_certificates(tmp_path / "renamed", name="elsewhere")
    renamed = renamed.model_copy(update={"server_name": "elsewhere"})

    async def test(address: str) -> None:
        assert "certificate" in (await refusal(open_channel(address, certificates_in(tls)))).lower()

    on_server(foreign, test)

    async def other_name(address: str) -> None:
        assert "Hostname" in await refusal(open_channel(address, certificates_in(tls)))

    on_server(renamed, other_name)


def test_a_client_with_certificates_does_not_talk_to_a_plain_server(tls: TlsConfig) -> None:
    async def test(address: str) -> None:
        await refusal(open_channel(address, certificates_in(tls)))

    on_server(None, test)


def test_a_running_server_takes_certificates_that_were_replaced(
    tls: TlsConfig, tmp_path: Path
) -> None:
    """All of them, the authority included: whoever has only the old ones is a stranger then."""
    old = new_certificates(tmp_path / "old")
    assert old.ca and old.certificate and old.key
    assert tls.ca and tls.certificate and tls.key
    for ours, first in ((tls.ca, old.ca), (tls.certificate, old.certificate), (tls.key, old.key)):
        shutil.copy(ours, ours + ".new")
        shutil.copy(first, ours)

    async def test(address: str) -> None:
        certificates = certificates_in(tls)
        await check(open_channel(address, certificates))
        for file in (tls.ca, tls.certificate, tls.key):
            assert file
            shutil.move(file + ".new", file)
        await check(open_channel(address, certificates))
        await refusal(raw(address, old, ca=tls.ca))

    on_server(tls, test)


def test_a_taken_port_is_a_configuration_error_that_names_it(tls: TlsConfig) -> None:
    async def test(address: str) -> None:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        for certificates in (None, certificates_in(tls)):
            with pytest.raises(ConfigError, match=f"cannot serve gRPC on {address}"):
                bind_peers(server, address, certificates)

    on_server(tls, test)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("h", False)],
)
def test_only_addresses_of_this_machine_alone_are_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
