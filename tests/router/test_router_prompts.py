"""What clients may say about their prompts: how they are rendered, cut, scored and told again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from fakes_house import House, Texts, house
from fakes_language import FakeLanguage
from fakes_told import Json, streamed_completion, whole_chat, whole_completion
from fakes_worker import Trap

MESSAGES = [{"role": "user", "content": "Say something."}]
UNFINISHED = [*MESSAGES, {"role": "assistant", "content": "Once upon a"}]
PROMPT = "Zoë ate 🍣 once upon a time"
TRUSTING = {"router": {"trust_request_chat_template": True}}


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


def prompt_of(h: House) -> tuple[int, ...]:
    """Token ids of the last request."""
    return h.p.attempts[-1].token_ids


async def refused(answer: Awaitable[object]) -> tuple[str | None, str | None]:
    with pytest.raises(openai.BadRequestError) as caught:
        await answer
    return caught.value.param, caught.value.code


def test_the_generation_prompt_can_be_left_out(texts: Texts) -> None:
    async def test(h: House) -> None:
        await whole_chat(h, messages=MESSAGES, max_tokens=1, add_generation_prompt=False)
        rendered = texts.template.render(MESSAGES, add_generation_prompt=False)
        assert list(prompt_of(h)) == texts.tokenizer.encode(rendered, False)

    in_house(texts, test)


def test_the_final_message_can_be_continued_and_told_again(texts: Texts) -> None:
    async def test(h: House) -> None:
        fields: Json = {"messages": UNFINISHED, "max_tokens": 4, "seed": 1}
        plain = await whole_chat(h, **fields, continue_final_message=True)
        rendered = texts.template.render(UNFINISHED, continue_final_message=True)
        assert list(prompt_of(h)) == texts.tokenizer.encode(rendered, False)
        echoed = await whole_chat(
            h, **fields, continue_final_message=True, add_generation_prompt=False, echo=True
        )
        assert echoed.choices[0]["text"] == "Once upon a" + plain.choices[0]["text"]
        both = whole_chat(h, **fields, continue_final_message=True, add_generation_prompt=True)
        assert await refused(both) == ("continue_final_message", "invalid_request")

    in_house(texts, test)


def test_a_client_s_template_needs_the_operator_s_trust(texts: Texts) -> None:
    fields: Json = {"messages": MESSAGES, "max_tokens": 1}
    template = "{{ messages[0].content }} {{ mood }} {{ bos_token }}"

    async def strict(h: House) -> None:
        answer = whole_chat(h, **fields, chat_template=template)
        assert await refused(answer) == ("chat_template", "unsupported_parameter")

    async def trusting(h: House) -> None:
        await whole_chat(
            h, **fields, chat_template=template, chat_template_kwargs={"mood": "gladly"}
        )
        wanted = f"Say something. gladly {texts.card.bos_token}"
        assert list(prompt_of(h)) == texts.tokenizer.encode(wanted, False)
        for bad in ("{% if", "{{ ().__class__ }}", "x" * 70_000):
            param, code = await refused(whole_chat(h, **fields, chat_template=bad))
            assert param in ("chat_template", "messages") and code == "invalid_request"

    in_house(texts, strict)
    in_house(texts, trusting, overrides=TRUSTING)


def test_variables_of_a_template_must_not_be_its_own(texts: Texts) -> None:
    async def test(h: House) -> None:
        for name in ("messages", "chat_template", "bos_token", "add_generation_prompt"):
            answer = whole_chat(h, messages=MESSAGES, chat_template_kwargs={name: "x"})
            assert await refused(answer) == ("chat_template_kwargs", "invalid_request")

    in_house(texts, test)


def test_a_prompt_can_be_cut_to_its_last_tokens(texts: Texts) -> None:
    ids = list(range(100, 160))

    async def test(h: House) -> None:
        await whole_completion(h, prompt=ids, max_tokens=2, truncate_prompt_tokens=3)
        assert list(prompt_of(h)) == ids[-3:]
        await whole_completion(h, prompt=ids, max_tokens=10, truncate_prompt_tokens=-1)
        assert list(prompt_of(h)) == ids[-30:], "what fits beside 10"
        await whole_completion(h, prompt=ids, truncate_prompt_tokens=-1, ignore_eos=True)
        assert list(prompt_of(h)) == ids[-39:]
        told = await whole_completion(
            h, prompt=PROMPT, max_tokens=1, truncate_prompt_tokens=2, echo=True
        )
        assert told.choices[0]["text"].startswith(texts.tokenizer.decode(prompt_of(h)))
        for wrong in (0, -2):
            answer = whole_completion(h, prompt=ids, truncate_prompt_tokens=wrong)
            assert await refused(answer) == ("truncate_prompt_tokens", "invalid_request")

    in_house(texts, test, overrides={"model": {"max_model_len": 40}})


def test_echoed_log_probabilities_begin_with_the_prompt_s(texts: Texts) -> None:
    async def test(h: House) -> None:
        told = await whole_completion(
            h, prompt=PROMPT, max_tokens=5, seed=2, echo=True, logprobs=2, n=2
        )
        num_prompt = len(texts.tokenizer.encode(PROMPT))
        for choice in told.choices.values():
            text, tokens, offsets = choice["text"], choice["tokens"], choice["text_offset"]
            assert text.startswith(PROMPT)
            assert len(tokens) == num_prompt + 5
            assert choice["token_logprobs"][0] is None and choice["top_logprobs"][0] is None
            assert choice["token_logprobs"][1:3] == [-1.0, -1.0 - 1 / 64]
            assert choice["token_logprobs"][num_prompt] == -0.5
            assert [len(top) for top in choice["top_logprobs"][1:num_prompt]] == [3] * (
                num_prompt - 1
            )
            for token, begin in zip(tokens, offsets, strict=True):
                if not token.startswith("bytes:"):
                    assert text.startswith(token, begin)

    in_house(texts, test)


def test_only_the_prompt_can_be_asked_for(texts: Texts) -> None:
    async def test(h: House) -> None:
        fields: Json = {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 0}
        for told in (await whole_completion(h, **fields), await streamed_completion(h, **fields)):
            choice = told.choices[0]
            assert choice["text"] == PROMPT and choice["finish_reason"] == "length"
            assert len(choice["tokens"]) == len(texts.tokenizer.encode(PROMPT))
            assert told.beside["usage"]["completion_tokens"] == 0
        told = await whole_completion(h, **fields | {"prompt": ["One", "Two"], "best_of": 3})
        assert [c["text"] for c in told.choices.values()] == ["One", "Two"]
        answer = whole_completion(h, prompt=PROMPT, max_tokens=0)
        assert await refused(answer) == ("max_tokens", "invalid_request")

    in_house(texts, test)


def test_prompt_log_probabilities_name_the_token_and_the_best_others(texts: Texts) -> None:
    async def test(h: House) -> None:
        told = await whole_completion(h, prompt=[50, 60, 70], max_tokens=2, prompt_logprobs=2)
        scores = told.choices[0]["prompt_logprobs"]
        assert scores[0] is None and len(scores) == 3
        assert {int(i): p["logprob"] for i, p in scores[2].items()} == {
            70: -1.0 - 1 / 64,
            71: -2.0,
            72: -3.0,
        }
        assert [p["rank"] for p in scores[2].values()] == [None, 1, 2]
        assert scores[1]["60"]["decoded_token"] == texts.tokenizer.token_text(60)
        chat = await whole_chat(h, messages=MESSAGES, max_tokens=2, prompt_logprobs=0)
        assert len(chat.beside["prompt_logprobs"]) == len(prompt_of(h))
        answer = whole_completion(h, prompt="x", prompt_logprobs=21)
        assert await refused(answer) == ("prompt_logprobs", "invalid_request")

    in_house(texts, test)


@pytest.mark.parametrize("overrides", [{}, {"router": {"mode": "combined"}}])
def test_prompt_log_probabilities_survive_any_worker_s_death(
    texts: Texts, overrides: dict[str, dict[str, object]]
) -> None:
    trap = Trap()
    fields: Json = {"prompt": list(range(100, 140)), "max_tokens": 4, "seed": 1}
    fields |= {"echo": True, "logprobs": 1, "prompt_logprobs": 3, "return_token_ids": True}

    async def test(h: House) -> None:
        undisturbed = await whole_completion(h, **fields)
        for position in range(4):
            trap.position = position
            assert await streamed_completion(h, **fields) == undisturbed, position
            assert trap.victim is not None
            await h.restart(trap.victim)

    in_house(texts, test, prefill=2, decode=2, trap=trap, overrides=overrides)


def test_token_ids_of_prompt_and_answer_can_be_told(texts: Texts) -> None:
    async def test(h: House) -> None:
        told = await whole_completion(
            h, prompt=[5, 6, 7], max_tokens=4, seed=1, n=2, return_token_ids=True
        )
        for index, choice in told.choices.items():
            assert choice["prompt_token_ids"] == [5, 6, 7]
            assert choice["token_ids"] == FakeLanguage().answer((5, 6, 7), 1, index, 4)
        chat = await whole_chat(h, messages=MESSAGES, max_tokens=4, seed=1, return_token_ids=True)
        assert chat.beside["prompt_token_ids"] == list(prompt_of(h))
        assert chat.choices[0]["token_ids"] == FakeLanguage().answer(prompt_of(h), 1, 0, 4)

    in_house(texts, test)
