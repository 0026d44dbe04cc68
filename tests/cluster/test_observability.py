"""What a real pair tells of itself: a tree of spans a request, recent requests, shares of peaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes_otlp_collector import Collector, Seen, grpc_collector
from fakes_real_house import PairHouse, pair_house

from bench.exposition import gauge
from core import metric_names as names
from core.trace_context import new_trace_id
from protos import inference_pb2 as pb

CLIENT_SPAN = "00f067aa0ba902b7"
PROMPT = list(range(60, 200))
TREE = {
    ("text_completion", "client"),
    ("tokenize", "text_completion"),
    ("queue", "text_completion"),
    ("attempt", "text_completion"),
    ("prefill", "attempt"),
    ("decode", "attempt"),
    ("kv_transfer", "decode"),
    ("kv_send", "attempt"),
}
SERVICES = {
    "prefill": ("tandem-prefill", "prefill-0"),
    "kv_send": ("tandem-prefill", "prefill-0"),
    "decode": ("tandem-decode", "decode-0"),
    "kv_transfer": ("tandem-decode", "decode-0"),
}


@pytest.fixture(scope="module")
def collector_at() -> Iterator[tuple[Collector, str]]:
    with grpc_collector() as made:
        yield made


@pytest.fixture(scope="module")
def collector(collector_at: tuple[Collector, str]) -> Collector:
    return collector_at[0]


@pytest.fixture(scope="module")
def made(model: Path, collector_at: tuple[Collector, str]) -> Iterator[PairHouse]:
    both = [
        f"observability.otlp_endpoint={collector_at[1]}",
        "observability.debug_requests=public",
        "observability.peak_tflops=0.01",
        "observability.peak_gbytes_per_s=1",
        f"model.model={model}",
    ]
    with pair_house(both=both) as house:
        yield house


def ask(made: PairHouse, trace_id: str, **fields: Any) -> dict[str, Any]:
    headers = {
        "traceparent": f"00-{trace_id}-{CLIENT_SPAN}-01",
        "tracestate": "vendor=1",
        "x-request-id": "mine",
    }
    body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "ignore_eos": True} | fields
    body["model"] = made.split.model
    response = made.house.loop.run(
        made.split.http.post("/v1/completions", json=body, headers=headers)
    )
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def tree(spans: list[Seen]) -> set[tuple[str, str]]:
    """(span, its parent), by the first words of their names."""
    names = {span.id: span.name.split()[0] for span in spans} | {CLIENT_SPAN: "client"}
    return {(span.name.split()[0], names.get(span.parent_id, "nobody")) for span in spans}


def traced(spans: list[Seen], trace_id: str) -> list[Seen]:
    return [span for span in spans if span.trace_id == trace_id]


def test_router_p_transfer_and_d_are_one_tree(made: PairHouse, collector: Collector) -> None:
    trace_id = new_trace_id()
    answer = ask(made, trace_id)
    spans = traced(collector.until(lambda seen: tree(traced(seen, trace_id)) >= TREE), trace_id)
    assert tree(spans) == TREE and len(spans) == len(TREE), [s.name for s in spans]
    assert {span.span.trace_state for span in spans} == {"vendor=1"}
    assert not any(span.failed for span in spans)
    by_name = {span.name.split()[0]: span for span in spans}
    for name, (service, instance) in SERVICES.items():
        assert (by_name[name].service, by_name[name].instance) == (service, instance)
    assert by_name["kv_transfer"].links == [by_name["kv_send"].id]
    assert by_name["kv_send"].links == [by_name["kv_transfer"].id]
    root, told = by_name["text_completion"], by_name["text_completion"].attributes
    assert root.service == "tandem-router"
    assert answer["id"] == f"cmpl-{told['gen_ai.response.id']}"
    assert told["gen_ai.operation.name"] == "text_completion"
    assert told["gen_ai.usage.input_tokens"] == len(PROMPT)
    assert told["gen_ai.usage.output_tokens"] == 5
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert told["gen_ai.request.temperature"] == 0.0
    assert told["tandem.client_request_id"] == "mine"
    for span in spans:
        assert span.span.start_time_unix_nano <= span.span.end_time_unix_nano
        assert root.span.start_time_unix_nano <= span.span.start_time_unix_nano


def test_a_grpc_call_brings_its_trace_in_its_metadata(
    made: PairHouse, collector: Collector
) -> None:
    trace_id = new_trace_id()
    metadata = (("traceparent", f"00-{trace_id}-{CLIENT_SPAN}-01"), ("x-request-id", "by-grpc"))

    async def complete() -> None:
        request = pb.CompleteRequest(
            model=made.split.model, token_ids=pb.TokenIds(ids=PROMPT), max_tokens=3
        )
        async for _ in made.split.stub.Complete(request, metadata=metadata):
            pass

    made.house.loop.run(complete())
    wanted = {"text_completion", "prefill", "decode", "kv_transfer", "kv_send"}
    spans = collector.until(
        lambda seen: {s.name.split()[0] for s in seen if s.trace_id == trace_id} >= wanted
    )
    (root,) = (s for s in spans if s.trace_id == trace_id and s.parent_id == CLIENT_SPAN)
    assert root.attributes["tandem.client_request_id"] == "by-grpc"


def test_a_trace_that_its_client_does_not_keep_is_not_sent(
    made: PairHouse, collector: Collector
) -> None:
    trace_id, later = new_trace_id(), new_trace_id()
    headers = {"traceparent": f"00-{trace_id}-{CLIENT_SPAN}-00"}
    body = {"model": made.split.model, "prompt": PROMPT, "max_tokens": 2}
    made.house.loop.run(made.split.http.post("/v1/completions", json=body, headers=headers))
    ask(made, later)
    assert not traced(collector.until(lambda seen: bool(traced(seen, later))), trace_id)


def test_no_prompt_is_in_any_span(made: PairHouse, collector: Collector) -> None:
    secret = "a very particular prompt"
    body = {"prompt": secret, "stop": ["a particular stop"]}
    trace_id = new_trace_id()
    ask(made, trace_id, **body)
    spans = collector.until(lambda seen: tree(traced(seen, trace_id)) >= TREE)
    assert "particular" not in " ".join(str(span.span) for span in spans)


def test_recent_requests_are_shown_with_their_legs(made: PairHouse) -> None:
    # So many tokens that P has long said that it is done when D says the last one
    answer = ask(made, new_trace_id(), max_tokens=200)
    http = made.split.http
    shown = made.house.loop.run(http.get(f"/debug/requests/{answer['id']}")).json()
    (request,) = shown["requests"]
    (attempt,) = request["attempts"]
    assert request["state"] == "ended" and request["outcome"] == "finished"
    assert (attempt["prefill_worker"], attempt["decode_worker"]) == ("prefill-0", "decode-0")
    assert attempt["sent_s"] <= attempt["started_s"] <= request["moments_s"]["first_token"]
    assert request["moments_s"]["first_token"] <= attempt["decoding_s"] <= attempt["ended_s"]
    assert attempt["legs"]["prefill"]["prefill_s"] > 0
    assert str(PROMPT[3:6])[1:-1] not in json.dumps(shown)
    mine = made.house.loop.run(http.get("/debug/requests/mine")).json()["requests"]
    assert request["request_id"] in [r["request_id"] for r in mine]


def test_workers_say_what_share_of_their_peaks_they_use(made: PairHouse) -> None:
    ask(made, new_trace_id(), max_tokens=40)

    async def shares() -> dict[str, dict[str, float]]:
        """Once a load report has come that tells of steps on both."""
        changed = asyncio.Event()
        made.split.server.fleet.watch(changed.set)
        while True:
            changed.clear()
            page = (await made.split.http.get("/metrics")).text
            found = {name: gauge(page, name) for name in (names.WORKER_MFU, names.WORKER_MBU)}
            if all(len(each) == 2 and all(each.values()) for each in found.values()):
                return found
            await changed.wait()

    for each in made.house.loop.run(shares()).values():
        assert set(each) == {
            'role="decode",worker="decode-0"',
            'role="prefill",worker="prefill-0"',
        }


def test_a_pull_that_fails_is_seen_on_all_sides_beside_the_one_that_follows(model: Path) -> None:
    with grpc_collector() as (collector, endpoint):
        both = [
            f"observability.otlp_endpoint={endpoint}",
            f"model.model={model}",
            "faults.spec=kv_send:fail:once",
        ]
        trace_id = new_trace_id()
        with pair_house(both=both) as house:
            ask(house, trace_id)
        spans = traced(collector.spans, trace_id)  # everything was sent before they stopped
    (root,) = (s for s in spans if s.parent_id == CLIENT_SPAN)
    assert not root.failed and root.attributes["tandem.num_attempts"] == 2
    attempts = sorted(
        (s for s in spans if s.name == "attempt"), key=lambda s: s.span.start_time_unix_nano
    )
    assert [s.failed for s in attempts] == [True, False]
    assert attempts[0].attributes["error.type"] == "transfer_failed"
    for attempt, failed in zip(attempts, (True, False), strict=True):
        below = {s.name: s for s in spans if s.parent_id == attempt.id}
        assert {"prefill", "decode"} <= below.keys()
        (pull,) = (s for s in spans if s.parent_id == below["decode"].id)
        assert (pull.name, pull.failed) == ("kv_transfer", failed)
        assert below["decode"].failed is failed
