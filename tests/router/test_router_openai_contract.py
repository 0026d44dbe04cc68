"""What the real `openai` package gets from the router, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_language import FakeLanguage
from openai.types.chat import ChatCompletion, ChatCompletionUserMessageParam

MESSAGES: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Say something."}]
PROMPT = "Once upon a time"


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    """Runs the test with one P and one D, and checks that no attempt is left on them."""

    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)
            for worker in (h.p, h.d):
                await worker.until(lambda w: not w.num_open)
            assert not h.kv.open

    asyncio.run(run())


def chat_prompt(texts: Texts) -> list[int]:
    return texts.tokenizer.encode(texts.template.render([dict(m) for m in MESSAGES]), False)


async def streamed_chat(
    h: House, **fields: Any
) -> tuple[dict[int, str], dict[int, str], list[Any]]:
    """Text and finish reason of every choice, and all chunks."""
    stream = await h.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, **fields
    )
    texts_of: dict[int, str] = {}
    reasons: dict[int, str] = {}
    chunks = [chunk async for chunk in stream]
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in reasons, "nothing follows a finish reason"
            texts_of[choice.index] = texts_of.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    return texts_of, reasons, chunks


def test_a_chat_answer_is_what_the_model_says(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = await h.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=12, seed=7
        )
        prompt = chat_prompt(texts)
        expected = FakeLanguage().answer(prompt, 7, 0, 12)
        assert answer.choices[0].message.content == texts.tokenizer.decode(expected)
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(prompt)
        assert answer.usage.completion_tokens == 12
        assert answer.usage.total_tokens == len(prompt) + 12

    in_house(texts, test)


def test_an_accumulated_chat_stream_is_the_unary_answer(texts: Texts) -> None:
    async def test(h: House) -> None:
        unary = await h.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=30, seed=3, n=3
        )
        text, reasons, chunks = await streamed_chat(h, max_tokens=30, seed=3, n=3)
        assert text == {c.index: c.message.content for c in unary.choices}
        assert reasons == {c.index: c.finish_reason for c in unary.choices}
        assert len(set(text.values())) == 3, "choices differ"
        assert chunks[0].choices[0].delta.role == "assistant"

    in_house(texts, test)


def test_an_accumulated_completion_stream_is_the_unary_answer(texts: Texts) -> None:
    async def test(h: House) -> None:
        fields: dict[str, Any] = {"prompt": [PROMPT, "Other"], "n": 2, "seed": 5, "logprobs": 2}
        unary = await h.openai.completions.create(model=MODEL, max_tokens=9, **fields)
        stream = await h.openai.completions.create(model=MODEL, max_tokens=9, stream=True, **fields)
        text: dict[int, str] = {}
        tokens: dict[int, list[str]] = {}
        offsets: dict[int, list[int]] = {}
        async for chunk in stream:
            for choice in chunk.choices:
                text[choice.index] = text.get(choice.index, "") + choice.text
                if choice.logprobs is not None:
                    tokens.setdefault(choice.index, []).extend(choice.logprobs.tokens or [])
                    offsets.setdefault(choice.index, []).extend(choice.logprobs.text_offset or [])
        assert [c.index for c in unary.choices] == [0, 1, 2, 3]
        for choice in unary.choices:
            assert text[choice.index] == choice.text
            assert choice.logprobs is not None
            assert tokens[choice.index] == choice.logprobs.tokens
            assert offsets[choice.index] == choice.logprobs.text_offset
            assert len(choice.logprobs.token_logprobs or []) == 9

    in_house(texts, test)


def test_equal_seeds_give_equal_answers_and_others_don_t(texts: Texts) -> None:
    async def test(h: House) -> None:
        async def ask(seed: int | None) -> str | None:
            answer = await h.openai.chat.completions.create(
                model=MODEL, messages=MESSAGES, max_tokens=8, seed=seed
            )
            return answer.choices[0].message.content

        assert await ask(11) == await ask(11)
        assert await ask(11) != await ask(12)
        assert await ask(-1) == await ask(-1)
        assert await ask(None) != await ask(None)

    in_house(texts, test)


def test_chat_logprobs_have_every_token_with_its_bytes(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = await h.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=6, seed=1, logprobs=True, top_logprobs=3
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        assert len(logprobs.content) == 6, "the first token's are not lost"
        data = b"".join(bytes(t.bytes or []) for t in logprobs.content)
        assert data.decode("utf-8", "replace") == answer.choices[0].message.content
        assert all(len(t.top_logprobs) == 3 for t in logprobs.content)
        assert all(t.logprob == -0.5 for t in logprobs.content)

    in_house(texts, test)


def test_streamed_logprobs_are_the_unary_ones(texts: Texts) -> None:
    async def test(h: House) -> None:
        fields: dict[str, Any] = {"max_tokens": 6, "seed": 1, "logprobs": True, "top_logprobs": 1}
        unary: ChatCompletion = await h.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, **fields
        )
        _, _, chunks = await streamed_chat(h, **fields)
        parts = [c.choices[0].logprobs for c in chunks if c.choices]
        content = [token for part in parts if part for token in part.content]
        logprobs = unary.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        assert [t.token for t in content] == [t.token for t in logprobs.content]

    in_house(texts, test)


def test_a_stop_string_ends_the_text_before_it(texts: Texts) -> None:
    async def test(h: House) -> None:
        free = await h.openai.completions.create(model=MODEL, prompt=PROMPT, max_tokens=20, seed=4)
        whole = free.choices[0].text
        stop = whole[len(whole) // 2 :][:7]
        stopped = await h.openai.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=20, seed=4, stop=[stop, "never there"]
        )
        assert stopped.choices[0].text == whole[: whole.index(stop)]
        assert stopped.choices[0].finish_reason == "stop"
        assert stopped.usage is not None and free.usage is not None
        told = stopped.usage.completion_tokens
        prompt = texts.tokenizer.encode(PROMPT)
        tokens = FakeLanguage().answer(prompt, 4, 0, 20)
        assert stop in texts.tokenizer.decode(tokens[:told]), "counts the completing token"
        assert stop not in texts.tokenizer.decode(tokens[: told - 1])

    in_house(texts, test)


def test_the_usage_chunk_comes_last_and_only_when_asked_for(texts: Texts) -> None:
    async def test(h: House) -> None:
        options = {"include_usage": True}
        _, _, chunks = await streamed_chat(
            h, max_tokens=8, n=2, stream_options=options, extra_body={"min_tokens": 5}
        )
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == 16
        assert all(chunk.usage is None for chunk in chunks[:-1])
        _, _, chunks = await streamed_chat(h, max_tokens=8)
        assert chunks[-1].choices and all(chunk.usage is None for chunk in chunks)

    in_house(texts, test)


def test_cached_tokens_are_the_prefill_worker_s_hits(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = await h.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=2
        )
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 16

    in_house(texts, test, num_cached_tokens=16)


def test_cached_tokens_never_exceed_the_prompt(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = await h.openai.completions.create(model=MODEL, prompt=[5, 6], max_tokens=2)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 2

    in_house(texts, test, num_cached_tokens=16)


def test_a_prompt_of_token_ids_is_taken_as_it_is(texts: Texts) -> None:
    async def test(h: House) -> None:
        await h.openai.completions.create(model=MODEL, prompt=[[5, 6, 7], [8]], max_tokens=1)
        assert {a.token_ids for a in h.p.attempts} == {(5, 6, 7), (8,)}

    in_house(texts, test)


def test_echo_puts_the_prompt_before_the_answer(texts: Texts) -> None:
    async def test(h: House) -> None:
        plain = await h.openai.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, seed=1)
        echoed = await h.openai.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=4, seed=1, echo=True
        )
        assert echoed.choices[0].text == PROMPT + plain.choices[0].text

    in_house(texts, test)


def test_sampling_fields_reach_the_worker_resolved(texts: Texts) -> None:
    async def test(h: House) -> None:
        await h.openai.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_completion_tokens=3,
            temperature=0.0,
            top_p=0.5,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={"12": 5},
            seed=-1,
            user="someone",
            extra_body={
                "top_k": 7,
                "min_p": 0.1,
                "repetition_penalty": 1.2,
                "stop_token_ids": [9],
                "ignore_eos": True,
                "priority": 4,
                "cache_salt": "salty",
            },
        )
        attempt = h.p.attempts[0]
        sampling = attempt.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.5, 7)
        assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.2)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
        assert sampling.logit_bias == ((12, 5.0),)
        assert sampling.stop_token_ids == (9,) and sampling.ignore_eos
        assert sampling.max_tokens == 3 and sampling.seed == 2**64 - 1
        assert (attempt.priority, attempt.cache_salt, attempt.tenant) == (4, "salty", "someone")

    in_house(texts, test)


def test_models_can_be_listed_and_asked_for(texts: Texts) -> None:
    async def test(h: House) -> None:
        models = [model.id async for model in h.openai.models.list()]
        assert models == [MODEL]
        assert (await h.openai.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError):
            await h.openai.models.retrieve("other/one")

    in_house(texts, test)


BAD_REQUESTS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"max_tokens": 10**6}, "context_length_exceeded", "messages"),
    ({"temperature": 3.0}, "invalid_request", "temperature"),
    ({"temperature": "hot"}, "invalid_type", "temperature"),
    ({"top_p": 0.0}, "invalid_request", "top_p"),
    ({"n": 0}, "invalid_request", "n"),
    ({"max_tokens": 0}, "invalid_request", "max_tokens"),
    ({"max_tokens": 10**30}, "invalid_request", "max_tokens"),
    ({"logit_bias": {"x": 1}}, "invalid_request", "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "invalid_request", "logit_bias"),
    ({"top_logprobs": 2}, "invalid_request", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "invalid_request", "top_logprobs"),
    ({"stop": ["a"] * 17}, "invalid_request", "stop"),
    ({"stop": ""}, "invalid_request", "stop"),
    ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools.0.function"),
    ({"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
    ({"function_call": "auto"}, "unsupported_parameter", "function_call"),
    ({"response_format": {"type": "xml"}}, "invalid_type", "response_format"),
    ({"extra_body": {"temprature": 1}}, "unknown_parameter", "temprature"),
    ({"messages": []}, "invalid_type", "messages"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages.0.content"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_type", "messages.0.role"),
    ({"stream_options": {"include_usage": True}}, "invalid_request", "stream_options"),
    ({"extra_body": {"min_tokens": 9}, "max_tokens": 8}, "invalid_request", "min_tokens"),
    ({"seed": 2**64}, "invalid_request", "seed"),
]


def test_a_client_s_fault_is_a_400_that_names_the_field(texts: Texts) -> None:
    async def test(h: House) -> None:
        for fields, code, param in BAD_REQUESTS:
            with pytest.raises(openai.BadRequestError) as caught:
                await h.openai.chat.completions.create(
                    **({"model": MODEL, "messages": MESSAGES} | fields)
                )
            assert (caught.value.code, caught.value.param) == (code, param)
            assert caught.value.type == "invalid_request_error"
        assert not h.p.attempts, "none of them reached a worker"

    in_house(texts, test)


def test_neutral_values_of_unsupported_fields_are_accepted(texts: Texts) -> None:
    async def test(h: House) -> None:
        await h.openai.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=2,
            response_format={"type": "text"},
            tools=[],
            stop=None,
            logit_bias=None,
        )

    in_house(texts, test)


def test_an_unknown_model_is_a_404(texts: Texts) -> None:
    async def test(h: House) -> None:
        with pytest.raises(openai.NotFoundError) as caught:
            await h.openai.chat.completions.create(model="other", messages=MESSAGES)
        assert caught.value.code == "model_not_found"

    in_house(texts, test)


def test_the_limit_is_prompt_and_output_together(texts: Texts) -> None:
    limit = 40

    async def test(h: House) -> None:
        fits = await h.openai.completions.create(
            model=MODEL, prompt=[5] * 30, max_tokens=10, extra_body={"ignore_eos": True}
        )
        assert fits.usage is not None and fits.usage.total_tokens == limit
        with pytest.raises(openai.BadRequestError) as caught:
            await h.openai.completions.create(model=MODEL, prompt=[5] * 30, max_tokens=11)
        assert caught.value.code == "context_length_exceeded"
        unset = await h.openai.completions.create(model=MODEL, prompt=[5] * 39)
        assert unset.usage is not None and unset.usage.completion_tokens == 1
        with pytest.raises(openai.BadRequestError) as caught:
            await h.openai.completions.create(model=MODEL, prompt=[5] * 40)
        assert caught.value.code == "context_length_exceeded"

    in_house(texts, test, overrides={"model": {"max_model_len": limit}})
