"""The client against a real server on a real socket, by a clock that moves when the test says."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fakes_openai_server import FakeOpenAIServer

from bench.client import (
    Endpoint,
    OpenAIClient,
    PreparedRequest,
    ServerError,
    Target,
    prepare,
    with_model,
)
from bench.record import RequestRecord
from bench.workload import Segment, WorkItem
from core.clock import MonotonicClock


class ScriptedClock:
    """Time moves only in `pace`, and only after the client has read it for what came before."""

    def __init__(self, gaps_s: list[float]) -> None:
        self._gaps_s = gaps_s
        self._time_s = 100.0
        self._was_read = asyncio.Event()

    def now(self) -> float:
        self._was_read.set()
        return self._time_s

    async def pace(self, index: int) -> None:
        await self._was_read.wait()
        self._was_read.clear()
        self._time_s += self._gaps_s[index]


def item(index: int = 0, input_len: int = 5, output_len: int = 3) -> WorkItem:
    return WorkItem(index, (Segment(f"request/{index}", input_len),), output_len)


PLAIN = Target("", model="fake")


async def answered(
    server: FakeOpenAIServer, *items: WorkItem, aim: Target = PLAIN
) -> list[RequestRecord]:
    """The records of the items, sent one after the other by one client."""
    client = OpenAIClient(replace(aim, base_url=server.base_url), MonotonicClock())
    try:
        return [await client.send(prepare(it, client.target, "seed")) for it in items]
    finally:
        client.close()


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_times_are_those_at_which_output_arrived(endpoint: Endpoint) -> None:
    async def run() -> RequestRecord:
        clock = ScriptedClock([0.5, 0.125, 0.25])
        async with FakeOpenAIServer(pace=clock.pace) as server:
            aim = Target(server.base_url, model="fake", endpoint=endpoint)
            client = OpenAIClient(aim, clock)
            record = await client.send(prepare(item(), aim, "seed"))
            client.close()
            return record

    record = asyncio.run(run())
    assert record.error is None
    assert (record.started_s, record.finished_s) == (100.0, 100.875)
    assert record.ttft_s == 0.5
    assert record.itl_s == (0.125, 0.25)
    assert record.tpot_s == 0.375 / 2


def test_tokens_are_counted_by_the_server_even_if_a_chunk_holds_many() -> None:
    async def run() -> list[RequestRecord]:
        async with FakeOpenAIServer(tokens_per_chunk=4) as server:
            return await answered(server, item(input_len=9, output_len=10))

    (record,) = asyncio.run(run())
    assert record.num_output_tokens == 10
    assert len(record.chunk_times_s) == 3
    assert (record.num_prompt_tokens, record.num_cached_tokens) == (9, 3)


def test_requests_are_sent_as_asked_and_extensions_only_on_demand() -> None:
    extras = replace(PLAIN, ignore_eos=True, include_timings=True)

    async def run() -> list[dict[str, object]]:
        async with FakeOpenAIServer(timings={"handoff_s": 0.25}) as server:
            await answered(server, item())
            (record,) = await answered(server, item(), aim=extras)
            assert record.timings == {"handoff_s": 0.25}
            await answered(server, item(), aim=replace(PLAIN, endpoint="chat"))
            return server.requests

    plain, extended, chat = asyncio.run(run())
    assert set(plain) == set(
        ["model", "max_tokens", "temperature", "stream", "stream_options", "prompt"]
    )
    assert plain["stream_options"] == {"include_usage": True}
    assert isinstance(plain["prompt"], list) and len(plain["prompt"]) == 5
    assert extended["ignore_eos"] is True and extended["include_timings"] is True
    messages = chat["messages"]
    assert isinstance(messages, list) and len(messages[0]["content"].split()) == 5


def test_connections_are_kept_between_requests() -> None:
    async def run() -> int:
        async with FakeOpenAIServer() as server:
            records = await answered(server, *(item(index) for index in range(5)))
            assert all(record.ok for record in records)
            return server.num_connections

    assert asyncio.run(run()) == 1


def test_a_refusal_is_a_result_and_the_connection_goes_on() -> None:
    async def run() -> tuple[list[RequestRecord], int]:
        async with FakeOpenAIServer(fail_requests=frozenset({0})) as server:
            return await answered(server, item(0), item(1)), server.num_connections

    (refused, served), num_connections = asyncio.run(run())
    assert refused.error == "HTTP 429 rate_limit_exceeded"
    assert served.ok and num_connections == 1


def test_a_stream_that_breaks_is_a_result_and_never_sent_again() -> None:
    async def run() -> tuple[list[RequestRecord], int]:
        async with FakeOpenAIServer(break_requests=frozenset({1})) as server:
            return await answered(server, item(0), item(1), item(2)), len(server.requests)

    records, num_requests = asyncio.run(run())
    assert [record.error for record in records] == [None, "broken stream", None]
    assert num_requests == 3


def test_a_kept_connection_that_died_meanwhile_is_replaced_without_loss() -> None:
    async def run() -> tuple[list[RequestRecord], int]:
        async with FakeOpenAIServer(drop_requests=frozenset({1})) as server:
            return await answered(server, item(0), item(1)), server.num_connections

    records, num_connections = asyncio.run(run())
    assert all(record.ok for record in records)
    assert num_connections == 2


def test_a_new_connection_that_dies_is_an_error() -> None:
    async def run() -> list[RequestRecord]:
        async with FakeOpenAIServer(drop_requests=frozenset({0})) as server:
            return await answered(server, item(0))

    (record,) = asyncio.run(run())
    assert record.error == "broken stream"


def test_a_server_that_is_not_there_is_a_result() -> None:
    async def run() -> list[RequestRecord]:
        async with FakeOpenAIServer() as server:
            gone = server
        return await answered(gone, item(0))

    (record,) = asyncio.run(run())
    assert record.error == "connection: ConnectionRefusedError"


def test_a_request_past_its_deadline_is_given_up_and_its_connection_closed() -> None:
    async def run() -> RequestRecord:
        never = asyncio.Event()

        async def hang(index: int) -> None:
            await never.wait()

        async with FakeOpenAIServer(pace=hang) as server:
            (record,) = await answered(server, item(), aim=replace(PLAIN, timeout_s=0.01))
            never.set()
            return record

    assert asyncio.run(run()).error == "timeout"


def test_the_models_name_is_the_servers_own_unless_given() -> None:
    async def run() -> tuple[str, str]:
        async with FakeOpenAIServer() as server:
            found = await with_model(Target(server.base_url), MonotonicClock())
            given = await with_model(Target(server.base_url, model="mine"), MonotonicClock())
            return found.model, given.model

    assert asyncio.run(run()) == ("fake", "mine")


def test_a_server_that_cannot_be_asked_is_a_typed_error() -> None:
    async def run() -> None:
        async with FakeOpenAIServer() as server:
            gone = server
        await with_model(Target(gone.base_url), MonotonicClock())

    with pytest.raises(ServerError):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("base_url", "line"),
    [
        ("http://host:1", b"POST /v1/completions HTTP/1.1"),
        ("http://host:1/", b"POST /v1/completions HTTP/1.1"),
        ("http://host:1/openai/v3/", b"POST /openai/v3/completions HTTP/1.1"),
    ],
)
def test_the_api_lies_under_the_urls_path(base_url: str, line: bytes) -> None:
    request: PreparedRequest = prepare(item(), Target(base_url, "m", api_key="key"), "seed")
    head = request.payload.split(b"\r\n")
    assert head[0] == line
    assert b"Host: host:1" in head and b"Authorization: Bearer key" in head
