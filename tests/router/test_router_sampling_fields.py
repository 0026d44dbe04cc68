"""Fields that decide which tokens come, which are told, and where an answer ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import openai
import pytest
from fakes_house import House, Texts, house
from fakes_language import FakeLanguage
from fakes_told import Json, stream_events, streamed_completion, whole_chat, whole_completion

from core.errors import ConfigError
from core.request import SamplingParams, TokenLogprobs
from text.generation_defaults import GenerationDefaults

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Say something."}]
GENERATION = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


def sampling_of(h: House) -> SamplingParams:
    """Of the last request."""
    return h.p.attempts[-1].sampling


async def refused(answer: Awaitable[object]) -> tuple[str | None, str | None]:
    with pytest.raises(openai.BadRequestError) as caught:
        await answer
    return caught.value.param, caught.value.code


def test_bad_words_are_spelt_at_a_beginning_and_after_a_space(texts: Texts) -> None:
    async def test(h: House) -> None:
        await whole_completion(h, prompt=PROMPT, max_tokens=1, bad_words=["wolf", " wolf", "a b"])
        encode = texts.tokenizer.encode
        words = {tuple(encode(word, False)) for word in ("wolf", " wolf", "a b", " a b")}
        assert set(sampling_of(h).bad_words) <= words
        assert tuple(encode("wolf", False)) in sampling_of(h).bad_words
        assert tuple(encode(" a b", False)) in sampling_of(h).bad_words
        for wrong in ([" "], [""], ["x"] * 257, ["x" * 129]):
            answer = whole_completion(h, prompt=PROMPT, bad_words=wrong)
            assert await refused(answer) == ("bad_words", "invalid_request")

    in_house(texts, test)


def test_allowed_tokens_must_leave_something_to_sample(texts: Texts) -> None:
    async def test(h: House) -> None:
        async def ask(**fields: Any) -> object:
            return await whole_completion(h, prompt=PROMPT, max_tokens=4, **fields)

        await ask(allowed_token_ids=[9, 5, 9])
        assert sampling_of(h).allowed_token_ids == (5, 9)
        eos = texts.card.eos_token_ids[0]
        (word,) = texts.tokenizer.encode("x", False)
        cases: list[Json] = [
            {"allowed_token_ids": []},
            {"allowed_token_ids": [-1]},
            {"allowed_token_ids": [10**6]},
            {"allowed_token_ids": [eos], "min_tokens": 1},
            {"allowed_token_ids": [9], "min_tokens": 1, "stop_token_ids": [9]},
            {"allowed_token_ids": [word], "bad_words": ["x"]},
        ]
        for fields in cases:
            assert await refused(ask(**fields)) == ("allowed_token_ids", "invalid_request")

    in_house(texts, test)


@dataclass(frozen=True)
class Opinionated(FakeLanguage):
    """Choices differ in their log-probabilities: the later, the better."""

    def next_event(self, attempt: Any, choice: int, emitted: Any, *, position: int) -> Any:
        event = super().next_event(attempt, choice, emitted, position=position)
        if event.logprobs is None:
            return event
        return replace(event, logprobs=TokenLogprobs(-9.0 + choice, event.logprobs.top))


def test_the_best_of_many_choices_are_told(texts: Texts) -> None:
    async def test(h: House) -> None:
        fields: Json = {"prompt": [PROMPT, "Other"], "max_tokens": 4, "seed": 1}
        all_of_them = await whole_completion(h, **fields, n=5)
        best = await whole_completion(h, **fields, n=2, best_of=5)
        for prompt in (0, 1):
            for place, choice in ((0, 4), (1, 3)):
                told = best.choices[2 * prompt + place]
                assert told["text"] == all_of_them.choices[5 * prompt + choice]["text"]
                assert told["tokens"] is None, "nobody asked for log-probabilities"
        assert best.beside["usage"] == all_of_them.beside["usage"], "all of them were computed"
        scored = await whole_completion(h, **fields, best_of=3, logprobs=1)
        assert scored.choices[0]["token_logprobs"] == [-7.0] * 4
        too_few = whole_completion(h, **fields, n=3, best_of=2)
        assert await refused(too_few) == ("best_of", "invalid_request")
        streamed = streamed_completion(h, **fields, best_of=2)
        assert await refused(streamed) == ("best_of", "invalid_request")
        chat = whole_chat(h, messages=MESSAGES, best_of=2)
        assert await refused(chat) == ("best_of", "unknown_parameter")

    in_house(texts, test, language=Opinionated())


def test_what_ended_a_choice_is_told_only_if_asked_for(texts: Texts) -> None:
    (word,) = texts.tokenizer.encode(" wolf", False)
    language = FakeLanguage(script={2: word})

    async def test(h: House) -> None:
        async def text(**fields: Any) -> str:
            told = await whole_completion(h, prompt=PROMPT, max_tokens=5, seed=1, **fields)
            assert told.choices[0]["finish_reason"] == ("stop" if fields else "length")
            return str(told.choices[0]["text"])

        whole = await text()
        before = whole[: whole.index(" wolf")]
        assert await text(stop=" wolf") == before
        assert await text(stop_token_ids=[word]) == before
        told = {"include_stop_str_in_output": True}
        assert await text(stop=" wolf", **told) == before + " wolf"
        assert await text(stop_token_ids=[word], **told) == before + " wolf"

    in_house(texts, test, language=language)


def test_special_tokens_are_text_if_asked_for(texts: Texts) -> None:
    eos = texts.card.eos_token_ids[0]
    language = FakeLanguage(script={1: 1, 3: eos}, eos_token_id=eos)

    async def test(h: House) -> None:
        async def text(**fields: Any) -> str:
            told = await whole_completion(
                h, prompt=PROMPT, max_tokens=9, seed=1, logprobs=0, **fields
            )
            return str(told.choices[0]["text"])

        special, end = texts.tokenizer.token_text(1), texts.tokenizer.token_text(eos)
        assert special not in await text()
        shown = await text(skip_special_tokens=False)
        assert special in shown and end not in shown
        shown = await text(skip_special_tokens=False, include_stop_str_in_output=True)
        assert shown.endswith(end)

    in_house(texts, test, language=language)


def test_completions_that_do_not_say_how_long_are_short(texts: Texts) -> None:
    async def test(h: House) -> None:
        for fields, max_tokens in (
            ({}, 16),
            ({"min_tokens": 20}, 20),
            ({"prompt": list(range(100, 130))}, 10),
            ({"max_tokens": None}, 40 - len(texts.tokenizer.encode(PROMPT))),
        ):
            given: Json = {"prompt": PROMPT, "ignore_eos": True}
            await whole_completion(h, **(given | fields))
            assert sampling_of(h).max_tokens == max_tokens

    in_house(texts, test, overrides={"model": {"max_model_len": 40}})


def test_tokens_can_be_called_by_their_ids(texts: Texts) -> None:
    async def test(h: House) -> None:
        fields: Json = {"max_tokens": 3, "seed": 1, "return_tokens_as_token_ids": True}
        told = await whole_completion(h, prompt=[5, 6], logprobs=1, **fields)
        answer = FakeLanguage().answer((5, 6), 1, 0, 3)
        assert told.choices[0]["tokens"] == [f"token_id:{t}" for t in answer]
        assert all(key.startswith("token_id:") for key in told.choices[0]["top_logprobs"][0])
        chat = await whole_chat(h, messages=MESSAGES, logprobs=True, **fields)
        assert chat.choices[0]["logprobs"][0]["token"].startswith("token_id:")

    in_house(texts, test)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_every_event_can_have_the_usage_so_far(texts: Texts, api: str) -> None:
    async def test(h: House) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        fields: Json = {"max_tokens": 5, "n": 2, "seed": 1, "ignore_eos": True}
        fields |= {"stream_options": options, "return_token_ids": True}
        if api == "chat":
            create = h.openai.chat.completions.create
            events = await stream_events(create, fields | {"messages": MESSAGES})
        else:
            events = await stream_events(h.openai.completions.create, fields | {"prompt": PROMPT})
        num_tokens = 0
        for event in events:
            num_tokens += sum(len(c.get("token_ids", [])) for c in event["choices"])
            last = event["usage"]
            assert last["completion_tokens"] == num_tokens
            assert last["total_tokens"] == last["prompt_tokens"] + num_tokens
        assert num_tokens == 10

    in_house(texts, test)


def test_the_model_s_own_defaults_count_where_a_client_says_nothing(texts: Texts) -> None:
    async def test(h: House) -> None:
        await whole_chat(h, messages=MESSAGES, max_tokens=1)
        told = sampling_of(h)
        assert (told.temperature, told.top_k, told.top_p) == (0.6, 20, 0.95)
        assert (told.repetition_penalty, told.min_p) == (1.1, 0.0)
        explicit: Json = {"temperature": 0.0, "top_k": -1, "top_p": 1.0, "repetition_penalty": 1.0}
        await whole_completion(h, prompt=PROMPT, max_tokens=1, **explicit)
        told = sampling_of(h)
        assert (told.temperature, told.top_k, told.top_p) == (0.0, 0, 1.0)
        assert told.repetition_penalty == 1.0

    in_house(opinionated(texts), test)


def test_the_operator_may_leave_the_model_s_defaults_out(texts: Texts) -> None:
    async def test(h: House) -> None:
        await whole_chat(h, messages=MESSAGES, max_tokens=1)
        assert (sampling_of(h).temperature, sampling_of(h).top_k) == (1.0, 0)

    none = {"model": {"generation_config": "none"}}
    in_house(opinionated(texts), test, overrides=none)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"repetition_penalty": 99.0}]
)
def test_defaults_that_no_request_could_ask_for_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="model.generation_config=none"):
        GenerationDefaults(**wrong)  # type: ignore[arg-type]


def opinionated(texts: Texts) -> Texts:
    """The same model, whose authors have an opinion."""
    return replace(texts, card=replace(texts.card, generation_config=GENERATION))
