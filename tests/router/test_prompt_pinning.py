"""Prompts that clients ask to stay cached: what of them, and what is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_persuadable import metric
from fakes_tenants import (
    PROMPT,
)
from fakes_worker import BLOCK_SIZE
from hypothesis import given, settings
from hypothesis import strategies as st

from core.request import AttemptFailed, PinnedPrefix, PinWish
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from router.dialect import Dialect
from router.http.schema import ChatBody
from router.pinning import num_common
from router.structure.grammar_check import GrammarCheck
from router.texts import Texts as RouterTexts
from text.chat_template import ChatTemplate
from text.structure.compiler import GrammarCompiler
from text.structure.vocabulary import grammar_vocabulary

FIVE_MINUTES, HOUR = 300.0, 3600.0
EPHEMERAL = {"type": "ephemeral"}
FOR_AN_HOUR = EPHEMERAL | {"ttl": "1h"}
SYSTEM = "You answer in rhymes, whatever you are asked. " * 4
QUESTION = "What is the way to the station? "
ANYBODY = {"model": MODEL, "max_tokens": 2, "seed": 1}
FULL = len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE


def serve(texts: Texts, test: Callable[[House], Awaitable[None]], **more: Any) -> None:
    async def run() -> None:
        async with house(texts, **more) as h:
            await test(h)

    asyncio.run(run())


async def post(h: House, path: str, **fields: Any) -> Any:
    response = await h.http.post(path, json=ANYBODY | fields)
    assert response.status_code == 200, response.text
    return response.json()


def part(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text} | more


def pins_of(h: House) -> PinWish | None:
    return h.p.attempts[-1].pins


def told(texts: Texts, h: House) -> list[tuple[str, float]]:
    """The text of each prefix that the last attempt was to pin, and for how long."""
    attempt = h.p.attempts[-1]
    assert attempt.pins is not None
    return [
        (texts.tokenizer.decode(attempt.token_ids[: p.num_tokens], False), p.ttl_s)
        for p in attempt.pins.prefixes
    ]


# ---- what is pinned


def test_a_mark_on_a_part_or_message_pins_the_conversation_up_to_its_end(texts: Texts) -> None:
    first = [part(SYSTEM, cache_control=EPHEMERAL), part("Be brief.")]
    system = {"role": "system", "content": first}
    user = {"role": "user", "content": QUESTION}
    later = [{"role": "assistant", "content": "Go west."}, {"role": "user", "content": "Thanks"}]

    async def test(h: House) -> None:
        await post(h, "/v1/chat/completions", messages=[system, user])
        ((text, ttl_s),) = told(texts, h)
        assert text.rstrip().endswith(SYSTEM.rstrip()) and ttl_s == FIVE_MINUTES
        marked = user | {"cache_control": FOR_AN_HOUR}
        whole = system | {"content": SYSTEM}
        await post(h, "/v1/chat/completions", messages=[whole, marked, *later])
        ((text, ttl_s),) = told(texts, h)
        assert text.endswith(QUESTION) and SYSTEM in text and ttl_s == HOUR
        await post(h, "/v1/chat/completions", messages=[system, marked, *later])
        (shorter, first_s), (longer, second_s) = told(texts, h)
        assert longer.startswith(shorter) and longer.endswith(QUESTION)
        assert (first_s, second_s) == (FIVE_MINUTES, HOUR)

    serve(texts, test)


def test_the_same_beginning_gives_the_same_prefix_whatever_follows(texts: Texts) -> None:
    system = {"role": "system", "content": SYSTEM, "cache_control": EPHEMERAL}

    async def test(h: House) -> None:
        prefixes = set()
        for question in ("What?", "Who was it, and when? " * 9, "é"):
            await post(
                h,
                "/v1/chat/completions",
                messages=[system, {"role": "user", "content": question}],
            )
            wish = pins_of(h)
            assert wish is not None
            (prefix,) = wish.prefixes
            prefixes.add(h.p.attempts[-1].token_ids[: prefix.num_tokens])
        assert len(prefixes) == 1

    serve(texts, test)


def test_beside_the_other_fields_it_pins_all_of_the_prompt(texts: Texts) -> None:
    async def test(h: House) -> None:
        await post(h, "/v1/completions", prompt=PROMPT, cache_control=EPHEMERAL)
        assert pins_of(h) == PinWish((PinnedPrefix(len(PROMPT), FIVE_MINUTES),))
        await post(h, "/v1/completions", prompt=[PROMPT, [1, 2, 3]], cache_control=FOR_AN_HOUR)
        asked = {a.token_ids: a.pins for a in h.p.attempts[1:]}
        assert asked == {
            ids: PinWish((PinnedPrefix(len(ids), HOUR),)) for ids in (tuple(PROMPT), (1, 2, 3))
        }
        messages = [{"role": "user", "content": QUESTION}]
        await post(h, "/v1/chat/completions", messages=messages, cache_control=EPHEMERAL)
        num_tokens = len(h.p.attempts[-1].token_ids)
        assert pins_of(h) == PinWish((PinnedPrefix(num_tokens, FIVE_MINUTES),))

    serve(texts, test)


def test_a_response_pins_its_input_and_says_so(texts: Texts) -> None:
    async def test(h: House) -> None:
        body = {"model": MODEL, "input": QUESTION, "max_output_tokens": 2}
        answer = await h.http.post("/v1/responses", json=body | {"cache_control": EPHEMERAL})
        assert answer.status_code == 200
        num_tokens = len(h.p.attempts[-1].token_ids)
        assert pins_of(h) == PinWish((PinnedPrefix(num_tokens, FIVE_MINUTES),))
        details = answer.json()["usage"]["input_tokens_details"]
        assert details["pinned_tokens"] == num_tokens // BLOCK_SIZE * BLOCK_SIZE
        plain = await h.http.post("/v1/responses", json=body)
        assert "pinned_tokens" not in plain.json()["usage"]["input_tokens_details"]

    serve(texts, test)


def test_what_was_cut_off_the_prompt_is_not_counted(texts: Texts) -> None:
    async def test(h: House) -> None:
        cut = {"prompt": PROMPT, "truncate_prompt_tokens": 10, "cache_control": EPHEMERAL}
        await post(h, "/v1/completions", **cut)
        assert pins_of(h) == PinWish((PinnedPrefix(10, FIVE_MINUTES),))
        system = {"role": "system", "content": SYSTEM, "cache_control": EPHEMERAL}
        messages = [system, {"role": "user", "content": QUESTION}]
        await post(h, "/v1/chat/completions", messages=messages, truncate_prompt_tokens=5)
        assert pins_of(h) == PinWish(())

    serve(texts, test)


def test_a_mark_that_the_template_does_not_print_pins_nothing(texts: Texts) -> None:
    marked = {"role": "user", "content": QUESTION, "cache_control": EPHEMERAL}
    messages = [marked, {"role": "user", "content": "And back?"}]

    async def test(h: House) -> None:
        template = "{{ messages[-1].content }} once more"
        answer = await post(h, "/v1/chat/completions", messages=messages, chat_template=template)
        assert pins_of(h) == PinWish(())
        assert answer["usage"]["prompt_tokens_details"]["pinned_tokens"] == 0

    serve(texts, test, overrides={"router": {"trust_request_chat_template": True}})


TEMPLATES = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}",
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>{% endfor %}Answer:",
)
"""What some do with the ends of messages."""
CONTENTS = st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def renderers(texts: Texts) -> Iterator[dict[str, RouterTexts]]:
    """The default model's tokenizer with each of the templates."""
    made = {
        template: RouterTexts(
            texts.tokenizer,
            ChatTemplate(template),
            num_threads=1,
            max_model_len=4096,
            dialect=Dialect(),
            grammars=GrammarCheck(
                GrammarCompiler(lambda: grammar_vocabulary(texts.tokenizer, texts.card.vocab_size))
            ),
        )
        for template in TEMPLATES
    }
    yield made
    for each in made.values():
        each.close()


@given(
    messages=st.lists(CONTENTS, min_size=1, max_size=4),
    template=st.sampled_from(TEMPLATES),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_prefix_ends_at_its_mark_in_any_conversation(
    renderers: dict[str, RouterTexts],
    messages: list[list[str]],
    template: str,
    data: st.DataObject,
) -> None:
    index = data.draw(st.integers(0, len(messages) - 1))
    number = data.draw(st.integers(0, len(messages[index]) - 1))
    sent = [{"role": "user", "content": [part(t) for t in parts]} for parts in messages]
    sent[index]["content"][number]["cache_control"] = EPHEMERAL  # type: ignore[index]
    (spec,) = ChatBody.model_validate({"model": MODEL, "messages": sent}).specs()

    async def find() -> tuple[tuple[int, ...], int]:
        """The prompt, and how much of it is to be pinned."""
        token_ids = await renderers[template].encode(spec.prompt)
        found = await renderers[template].pinned_prefixes(spec, spec.prompt, token_ids)
        return token_ids, found[0].num_tokens

    def rendered(texts_of: list[str]) -> str:
        told = [{"role": "user", "content": text} for text in texts_of]
        return ChatTemplate(template).render(told).removesuffix("Answer:") if told else ""

    whole = ["\n".join(parts) for parts in messages]
    marked = "\n".join(messages[index][: number + 1])
    until = rendered(whole[:index]) + "<user>" + (marked.lstrip() if "trim" in template else marked)
    if not rendered(whole).startswith(until):
        until = until.rstrip()
    token_ids, num_tokens = asyncio.run(find())
    ids = renderers[template].tokenizer.encode(until, add_special_tokens=False)
    assert num_tokens == num_common(ids, token_ids)


# ---- what is refused


BAD: tuple[Any, ...] = (
    {"type": "permanent"},
    {"type": "ephemeral", "ttl": "2h"},
    {"type": "ephemeral", "ttl": 300},
    {"type": "ephemeral", "scope": "all"},
    {"ttl": "5m"},
    {},
    [],
    True,
    "ephemeral",
)


def test_a_bad_value_is_refused_by_name_wherever_it_stands(texts: Texts) -> None:
    user = {"role": "user", "content": QUESTION}

    def asks(wrong: Any) -> list[tuple[str, dict[str, Any]]]:
        return [
            ("/v1/completions", {"prompt": "x", "cache_control": wrong}),
            ("/v1/responses", {"input": "x", "cache_control": wrong}),
            ("/v1/chat/completions", {"messages": [user], "cache_control": wrong}),
            ("/v1/chat/completions", {"messages": [user | {"cache_control": wrong}]}),
            (
                "/v1/chat/completions",
                {"messages": [user | {"content": [part("x", cache_control=wrong)]}]},
            ),
        ]

    async def test(h: House) -> None:
        for path, fields in [each for wrong in BAD for each in asks(wrong)]:
            answer = await h.http.post(path, json={"model": MODEL} | fields)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "cache_control"), path
            assert "cache_control" in error["message"] and error["code"] == "invalid_type"
        assert not h.p.attempts

    serve(texts, test)


def test_a_request_has_four_marks_and_no_more(texts: Texts) -> None:
    def messages(count: int) -> list[dict[str, Any]]:
        marked = [part(f"{i} ", cache_control=EPHEMERAL) for i in range(count)]
        return [{"role": "user", "content": [*marked, part("?")]}]

    async def test(h: House) -> None:
        await post(h, "/v1/chat/completions", messages=messages(4))
        fields: tuple[dict[str, Any], ...] = (
            {"messages": messages(5)},
            {"messages": messages(4), "cache_control": EPHEMERAL},
        )
        for wrong in fields:
            answer = await h.http.post("/v1/chat/completions", json=ANYBODY | wrong)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "cache_control"

    serve(texts, test)


# ---- what is told


def test_usage_tells_what_was_granted_to_who_asked(texts: Texts) -> None:
    async def test(h: House) -> None:
        asked = {"prompt": PROMPT, "cache_control": EPHEMERAL}
        answer = await post(h, "/v1/completions", **asked)
        assert answer["usage"]["prompt_tokens_details"] == {
            "cached_tokens": 0,
            "pinned_tokens": FULL,
        }
        both = await post(h, "/v1/completions", **asked | {"prompt": [PROMPT, PROMPT], "n": 2})
        assert both["usage"]["prompt_tokens_details"]["pinned_tokens"] == 2 * FULL
        plain = await post(h, "/v1/completions", prompt=PROMPT)
        assert plain["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        h.p.num_pinned_tokens = 0
        refused = await post(h, "/v1/completions", **asked)
        assert refused["usage"]["prompt_tokens_details"]["pinned_tokens"] == 0
        assert refused["choices"] == answer["choices"]
        assert metric(h, "tandem_pin_requests_total", outcome="pinned") == 3
        assert metric(h, "tandem_pin_requests_total", outcome="not_pinned") == 1
        recent = (await h.http.get("/debug/requests")).json()["requests"]
        assert [r["pinned_tokens"] for r in recent] == [0, None, FULL, FULL, FULL]

    serve(texts, test)


def test_a_stream_tells_it_with_its_usage(texts: Texts) -> None:
    async def test(h: House) -> None:
        stream = await h.openai.completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=2,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"cache_control": FOR_AN_HOUR},
        )
        last = [event async for event in stream][-1]
        assert last.usage is not None and last.usage.prompt_tokens_details is not None
        assert last.usage.prompt_tokens_details.model_dump()["pinned_tokens"] == FULL

    serve(texts, test)


def test_grpc_asks_and_tells_the_same(texts: Texts) -> None:
    async def test(h: House) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel:
            stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
            request = pb.CompleteRequest(
                model=MODEL, token_ids=pb.TokenIds(ids=PROMPT), max_tokens=2
            )
            plain = [event async for event in stub.Complete(request)][-1].usage
            assert not plain.HasField("pinned_tokens") and pins_of(h) is None
            request.cache_control.ttl = "1h"
            pinned = [event async for event in stub.Complete(request)][-1].usage
            assert pinned.pinned_tokens == FULL
            assert pins_of(h) == PinWish((PinnedPrefix(len(PROMPT), HOUR),))

    serve(texts, test)


def test_a_beam_search_pins_its_prompt_once(texts: Texts) -> None:
    async def test(h: House) -> None:
        fields = {"use_beam_search": True, "n": 2, "max_tokens": 3}
        answer = await post(h, "/v1/completions", prompt=PROMPT, cache_control=EPHEMERAL, **fields)
        assert answer["usage"]["prompt_tokens_details"]["pinned_tokens"] == FULL
        wishes = [attempt.pins for attempt in h.p.attempts]
        assert wishes[0] is not None and not any(wishes[1:])

    serve(texts, test)


def test_another_attempt_asks_for_the_pin_again(texts: Texts) -> None:
    failed = AttemptFailed("", "internal_error", "it broke", True)

    async def test(h: House) -> None:
        h.p.failures.append(failed)
        answer = await post(h, "/v1/completions", prompt=PROMPT, cache_control=EPHEMERAL)
        assert answer["usage"]["prompt_tokens_details"]["pinned_tokens"] == FULL
        first, second = h.p.attempts
        assert first.pins == second.pins == PinWish((PinnedPrefix(len(PROMPT), FIVE_MINUTES),))

    serve(texts, test)


# ---- where it goes


def test_the_next_request_goes_where_the_pinned_prefix_is(texts: Texts) -> None:
    async def test(h: House) -> None:
        await post(h, "/v1/completions", prompt=PROMPT, cache_control=EPHEMERAL)
        (first,) = [p for p in h.prefill if p.attempts]
        for i in range(6):
            await post(h, "/v1/completions", prompt=[*PROMPT, 500 + i])
        assert len(first.attempts) == 7
        await post(h, "/v1/completions", prompt=[7, *PROMPT])
        assert len(first.attempts) == 7, "an idle worker takes what begins otherwise"

    serve(texts, test, prefill=2)
