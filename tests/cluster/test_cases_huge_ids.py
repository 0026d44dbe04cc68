"""Names of a megabyte, wherever a client can put one: bounded or refused, and nobody is harmed."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fakes_byte_model import write_byte_model
from fakes_cases import CaseHouse, case_house, check_same, post, settings, some_tokens
from fakes_raw_session import attempt, raw_session

from core.handoff import Handoff, Started
from core.request import AttemptDone, TokenEvent
from router.identifiers import MAX_CLIENT_ID_LENGTH

HUGE = "x" * 2**20
PROMPT = some_tokens(40, seed=2)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseHouse]:
    with case_house(settings(write_byte_model(tmp_path_factory.mktemp("byte-model")))) as made:
        yield made


async def _goes_on(house: CaseHouse) -> None:
    """The house serves as before, and holds nothing."""
    answer = await house.ask(PROMPT, max_tokens=5)
    check_same(answer, await house.ask(PROMPT, max_tokens=5, cache_salt="alone"))
    await house.check_whole()


@pytest.mark.parametrize("length", [2**12, 2**15, 2**20])
def test_a_request_id_in_a_header_is_bounded_or_refused(house: CaseHouse, length: int) -> None:
    async def test() -> None:
        http = house.router.http
        body = {"model": house.router.model, "prompt": PROMPT, "max_tokens": 3}
        headers = {"x-request-id": HUGE[:length]}
        try:
            response = await http.post("/v1/completions", json=body, headers=headers)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            assert length > 2**15, "it was hung up on"
        else:
            assert response.status_code in (200, 400, 431)
            assert len(response.headers.get("x-request-id", "")) <= MAX_CLIENT_ID_LENGTH
            assert response.status_code == 200 or length > 2**12
        await _goes_on(house)

    house.run(test())


@pytest.mark.parametrize("field", ["user", "cache_salt", "request_id", "model", HUGE])
def test_a_field_of_the_body_may_be_as_long_as_the_body(house: CaseHouse, field: str) -> None:
    """Answered, or refused as the client's fault; never an error of ours."""

    async def test() -> None:
        response = await post(house.router, PROMPT, max_tokens=3, **{field: HUGE})
        assert response.status_code in (200, 400, 404), response.text[:300]
        assert len(response.headers["x-request-id"]) <= MAX_CLIENT_ID_LENGTH
        assert len(response.content) < 2**14, "it is not sent back"
        await _goes_on(house)

    house.run(test())


def test_a_transfer_of_a_huge_id_is_a_transfer_like_any_other(house: CaseHouse) -> None:
    """Ids inside are ours and short; but a worker must not depend on it."""

    async def tokens(transfer_id: str) -> list[int]:
        async with raw_session(house.p.member) as of_p, raw_session(house.d.member) as of_d:
            await of_p.prefill(attempt(transfer_id, PROMPT))
            handoff: Handoff | None = (await of_p.take(Started)).handoff
            assert handoff is not None
            await of_d.decode(attempt(transfer_id, PROMPT), handoff)
            got = [(await of_p.take(TokenEvent)).token_id]
            got += [(await of_d.take(TokenEvent)).token_id for _ in range(4)]
            await of_d.take(AttemptDone)
        await house.check_whole()
        return got

    async def test() -> None:
        assert await tokens(HUGE) == await tokens("short")
        await _goes_on(house)

    house.run(test())
