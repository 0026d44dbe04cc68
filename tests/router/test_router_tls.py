"""The public servers with certificates: HTTPS, and gRPC that may ask clients for theirs."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import httpx
import pytest
from fakes_certificates import new_certificates
from fakes_house import House, Texts, house
from fakes_loop_thread import DEADLINE_S

from core.config import TlsConfig
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc

HOST = "localhost"


@pytest.fixture
def tls(tmp_path: Path) -> TlsConfig:
    return new_certificates(tmp_path / "front", also_for=(HOST,))


def in_house(
    texts: Texts,
    tls: TlsConfig,
    test: Callable[[House], Awaitable[None]],
    *,
    client_ca: str | None = None,
) -> None:
    front: dict[str, object] = {
        "tls_certificate": tls.certificate,
        "tls_key": tls.key,
        "tls_client_ca": client_ca,
    }

    async def run() -> None:
        async with house(texts, overrides={"router": front}) as h:
            await test(h)

    asyncio.run(run())


async def live(h: House, tls: TlsConfig) -> int:
    context = ssl.create_default_context(cafile=tls.ca)
    async with httpx.AsyncClient(verify=context, timeout=DEADLINE_S) as client:
        return (await client.get(f"https://{HOST}:{h.ports.http}/live")).status_code


async def list_models(h: House, tls: TlsConfig, *, with_certificate: TlsConfig | None) -> str:
    assert tls.ca
    mine: tuple[bytes | None, bytes | None] = (None, None)
    if with_certificate is not None:
        assert with_certificate.key and with_certificate.certificate
        key, certificate = Path(with_certificate.key), Path(with_certificate.certificate)
        mine = (key.read_bytes(), certificate.read_bytes())
    credentials = grpc.ssl_channel_credentials(Path(tls.ca).read_bytes(), *mine)
    async with grpc.aio.secure_channel(f"{HOST}:{h.ports.grpc}", credentials) as channel:
        stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
        reply = await stub.ListModels(pb.ListModelsRequest(), timeout=DEADLINE_S)
    return reply.models[0].id


async def refused(h: House, tls: TlsConfig, *, with_certificate: TlsConfig | None) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        await list_models(h, tls, with_certificate=with_certificate)


def test_both_servers_show_the_certificate_and_take_nothing_in_the_clear(
    texts: Texts, tls: TlsConfig
) -> None:
    async def test(h: House) -> None:
        assert await live(h, tls) == 200
        assert await list_models(h, tls, with_certificate=None) == "fake"
        with pytest.raises(httpx.HTTPError):
            await h.http.get("/live")
        async with grpc.aio.insecure_channel(f"{HOST}:{h.ports.grpc}") as channel:
            stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await stub.ListModels(pb.ListModelsRequest(), timeout=DEADLINE_S)
        assert await live(h, tls) == 200

    in_house(texts, tls, test)


def test_a_front_door_that_others_reach_says_at_its_start_if_it_is_plain(
    texts: Texts, tls: TlsConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(**front: object) -> str:
        caplog.clear()
        async with house(texts, overrides={"router": {"grpc_host": "0.0.0.0", **front}}):
            return caplog.text

    assert "router.grpc_host is 0.0.0.0 without router.tls_certificate" in asyncio.run(run())
    assert "plain" not in asyncio.run(run(tls_certificate=tls.certificate, tls_key=tls.key))


def test_grpc_asks_clients_for_certificates_where_an_authority_for_them_is_named(
    texts: Texts, tls: TlsConfig, tmp_path: Path
) -> None:
    clients, foreign = new_certificates(tmp_path / "a"), new_certificates(tmp_path / "b")

    async def test(h: House) -> None:
        assert await list_models(h, tls, with_certificate=clients) == "fake"
        await refused(h, tls, with_certificate=foreign)
        await refused(h, tls, with_certificate=None)
        assert await live(h, tls) == 200

    in_house(texts, tls, test, client_ca=clients.ca)


def test_new_connections_see_certificates_that_were_replaced(
    texts: Texts, tls: TlsConfig, tmp_path: Path
) -> None:
    new = new_certificates(tmp_path / "new", also_for=(HOST,))

    async def test(h: House) -> None:
        assert await live(h, tls) == 200
        for theirs, ours in ((new.certificate, tls.certificate), (new.key, tls.key)):
            assert theirs and ours
            shutil.copy(theirs, ours)
        assert await live(h, new) == 200
        assert await list_models(h, new, with_certificate=None) == "fake"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await live(h, tls)

    in_house(texts, tls, test)
