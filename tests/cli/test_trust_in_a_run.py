"""How commands trust the server of a run that shows a certificate nobody else knows."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest
from fakes_certificates import new_certificates
from fastapi import FastAPI

from cli.runs import trust_run
from cluster.run_record import Run
from core.config import RouterConfig, TlsConfig
from core.errors import ConfigError
from protos.certificate_files import front_certificates
from router.http.server import HttpServer

DEADLINE_S = 20.0


def run_at(address: str, certificate: str) -> Run:
    return Run("run", 1, "model", address, "", "", "", "", http_certificate=certificate)


async def ask(tls: TlsConfig, trusted: str) -> int:
    """A server with the certificate of `tls`, asked by who trusts another file."""
    config = RouterConfig(tls_certificate=tls.certificate, tls_key=tls.key)
    server = HttpServer(
        FastAPI(), host="127.0.0.1", port=0, certificates=front_certificates(config)
    )
    port = await server.start(timeout_s=DEADLINE_S)
    run = run_at(f"127.0.0.1:{port}", trusted)
    try:
        async with httpx.AsyncClient(verify=trust_run(run), timeout=DEADLINE_S) as client:
            return (await client.get(run.http_url)).status_code
    finally:
        await server.stop()


def test_the_certificate_that_the_record_names_is_trusted_and_no_other(tmp_path: Path) -> None:
    """It is for the name `tandem`, asked for at an address."""
    tls, other = new_certificates(tmp_path / "a"), new_certificates(tmp_path / "b")
    assert tls.certificate and other.certificate
    assert asyncio.run(ask(tls, tls.certificate)) == 404
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(ask(tls, other.certificate))


def test_a_plain_run_needs_none_and_a_missing_file_is_named(tmp_path: Path) -> None:
    assert trust_run(run_at("host:1", "")) is True
    assert run_at("host:1", "").http_url == "http://host:1"
    with pytest.raises(ConfigError, match=r"gone\.pem"):
        trust_run(run_at("host:1", str(tmp_path / "gone.pem")))
    assert isinstance(trust_run(run_at("h", _certificate(tmp_path))), ssl.SSLContext)


def _certificate(directory: Path) -> str:
    certificate = new_certificates(directory).certificate
    assert certificate
    return certificate
