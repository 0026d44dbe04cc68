"""/openapi.json says what is served, and what is served keeps to it: schemathesis asks everything.

The router is the real one and the workers compute nothing, so every answer is quick.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fakes_house import MODEL, House, Texts, house
from fakes_loop_thread import LoopThread
from hypothesis import HealthCheck, Phase, given, settings
from prometheus_client import CollectorRegistry
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from core.clock import MonotonicClock
from core.config import Config
from router.batch.batch_metrics import BatchMetrics
from router.batch.batches import Batches
from router.http.app import HttpSettings, create_app
from router.http.openapi import openapi_document, operations
from router.tenants.gatekeeper import Gatekeeper

PROMISES = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
MODES = {
    GenerationMode.POSITIVE: PROMISES,
    GenerationMode.NEGATIVE: [*PROMISES, negative_data_rejection],
}


@pytest.fixture(scope="module")
def served(texts: Texts) -> Iterator[str]:
    """A house's address. Answers are short, since clients may ask for all that fits the model."""
    overrides: dict[str, dict[str, object]] = {
        "model": {"served_model_name": MODEL, "max_model_len": 48}
    }
    with LoopThread() as loop:
        made = house(texts, overrides=overrides)
        h: House = loop.run(made.__aenter__())
        try:
            yield f"http://127.0.0.1:{h.ports.http}"
            assert h.router.door.admission.num_running == 0, "nothing is left running"
        finally:
            loop.run(made.__aexit__(None, None, None))


def ask_everything(address: str, num_examples: int) -> None:
    """That many requests of each kind for every operation, good ones and bad ones."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]
        for mode, checks in MODES.items():
            if mode is GenerationMode.NEGATIVE and not operation.body:
                continue

            ask(address, operation, mode, checks, num_examples)


def ask(address: str, operation: Any, mode: GenerationMode, checks: Any, number: int) -> None:
    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        response = case.call(base_url=address, timeout=20)
        case.validate_response(response, checks=checks)

    check()


def test_what_is_served_keeps_to_the_document(served: str) -> None:
    ask_everything(served, num_examples=5)


@pytest.mark.slow
def test_what_is_served_keeps_to_the_document_at_length(served: str) -> None:
    ask_everything(served, num_examples=300)


def test_every_route_is_in_the_document_and_nothing_else(texts: Texts) -> None:
    async def routes() -> set[tuple[str, str]]:
        async with house(texts, ready=False) as h:
            settings = HttpSettings(max_body_bytes=1, created=0)
            gatekeeper, config = Gatekeeper(None, open_metrics=True), Config()
            metrics = BatchMetrics(CollectorRegistry())
            batches = Batches(config, h.router.door, gatekeeper, metrics, MonotonicClock())
            app = create_app(h.router.door, settings, gatekeeper, batches)
            return {
                (method.lower(), re.sub(r":path\}", "}", route.path))
                for route in app.routes
                if isinstance(route, Route)
                for method in (route.methods or set()) - {"HEAD"}
            }

    served = asyncio.run(routes())
    own = {("get", "/openapi.json"), ("get", "/docs")}
    of_the_page = {route for route in served if route[1].startswith("/dashboard")}
    described = {(operation.method, operation.path) for operation in operations()}
    assert served - own - of_the_page == described


def test_every_reference_leads_somewhere() -> None:
    document = openapi_document(MODEL)
    references = set(re.findall(r"'\$ref': '#/components/schemas/(\w+)'", repr(document)))
    assert references >= {"ChatBody", "ResponsesBody", "Error", "ChatChunk"}
    names = set(document["components"]["schemas"])
    assert references <= names
    assert not [name for name in names if "__" in name], "two classes of one name"


def test_what_needs_a_key_says_so() -> None:
    paths = openapi_document(MODEL)["paths"]
    chat, health = paths["/v1/chat/completions"]["post"], paths["/health"]["get"]
    assert chat["security"] == [{}, {"apiKey": []}] and "security" not in health
    assert {"401", "403", "429", "503"} <= set(chat["responses"])
    assert set(health["responses"]) == {"200"}


def test_bodies_are_described_down_to_their_fields() -> None:
    schemas = openapi_document(MODEL)["components"]["schemas"]
    chat = schemas["ChatBody"]
    assert chat["additionalProperties"] is False
    assert {"messages", "temperature", "logit_bias", "stream_options"} <= set(chat["properties"])
    assert chat["properties"]["model"]["enum"] == [MODEL]
    assert set(chat["required"]) == {"model", "messages"}
    assert "previous_response_id" in schemas["ResponsesBody"]["properties"]


def test_the_page_needs_nothing_from_elsewhere(texts: Texts) -> None:
    async def page() -> tuple[str, str]:
        async with house(texts, ready=False) as h:
            response = await h.http.get("/docs")
            assert response.headers["content-type"].startswith("text/html")
            return response.text, response.headers["content-security-policy"]

    text, policy = asyncio.run(page())
    assert not re.findall(r"https?://", text)
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
