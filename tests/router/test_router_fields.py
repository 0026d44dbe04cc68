"""Every row of docs/FIELDS.md, by the real `openai` package: a stream, taken together, is the
whole answer; and what isn't supported is refused by name."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from fakes_fields_table import rows
from fakes_house import House, Texts, house
from fakes_language import FakeLanguage
from fakes_told import streamed_chat, streamed_completion, whole_chat, whole_completion

from router.http.schema import NEUTRAL

Fields = dict[str, Any]
CHAT: Fields = {
    "messages": [{"role": "user", "content": "Say something."}],
    "max_tokens": 12,
    "seed": 5,
}
COMPLETION: Fields = {"prompt": "Once upon a time", "max_tokens": 12, "seed": 5}
LANGUAGE = FakeLanguage(script={3: 2000, 5: 17, 6: 1})
"""17 and 1 are special; so are the ends of answers that a field makes longer."""
BEAMS: Fields = {"use_beam_search": True, "n": 2, "max_tokens": 4}

COMMON: dict[str, list[Fields]] = {
    "model": [{}],
    "n": [{"n": 1}, {"n": 3}],
    "use_beam_search": [BEAMS, BEAMS | {"n": 3}],
    "length_penalty": [BEAMS | {"length_penalty": 0.5}],
    "early_stopping": [BEAMS | {"early_stopping": True}],
    "max_tokens": [{"max_tokens": 1}, {"max_tokens": 30}],
    "min_tokens": [{"min_tokens": 5, "stop_token_ids": [2000]}],
    "temperature": [{"temperature": 0.0}, {"temperature": 1.5}],
    "top_p": [{"top_p": 0.4}],
    "top_k": [{"top_k": 3}, {"top_k": -1}, {"top_k": 0}],
    "min_p": [{"min_p": 0.2}],
    "presence_penalty": [{"presence_penalty": -1.0}],
    "frequency_penalty": [{"frequency_penalty": 1.0}],
    "repetition_penalty": [{"repetition_penalty": 1.3}],
    "logit_bias": [{"logit_bias": {"17": -100, "4": 2.5}}],
    "bad_words": [{"bad_words": ["wolf", "once upon a time"]}],
    "allowed_token_ids": [{"allowed_token_ids": [5, 17, 2000]}],
    "seed": [{"seed": -3}],
    "stop": [{"stop": "x"}, {"stop": ["e", "no such text"]}],
    "stop_token_ids": [{"stop_token_ids": [2000, 2001]}],
    "include_stop_str_in_output": [
        {"include_stop_str_in_output": True, "stop": "e"},
        {"include_stop_str_in_output": True, "stop_token_ids": [2000]},
    ],
    "ignore_eos": [{"ignore_eos": True}],
    "skip_special_tokens": [{"skip_special_tokens": False}],
    "prompt_logprobs": [{"prompt_logprobs": 0}, {"prompt_logprobs": 2, "n": 2}],
    "echo": [{"echo": True}, {"echo": True, "max_tokens": 0}, {"echo": True, "n": 2}],
    "truncate_prompt_tokens": [{"truncate_prompt_tokens": 3}, {"truncate_prompt_tokens": -1}],
    "add_special_tokens": [{"add_special_tokens": True}, {"add_special_tokens": False}],
    "return_token_ids": [{"return_token_ids": True, "n": 2}],
    "stream": [{}],
    "stream_options": [{}],
    "stream_options.include_usage": [{}],
    "stream_options.continuous_usage_stats": [{}],
    "stream_options.include_obfuscation": [{}],
    "priority": [{"priority": -4}],
    "cache_salt": [{"cache_salt": "salty"}],
    "cache_control": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "user": [{"user": "somebody"}],
    "safety_identifier": [{"safety_identifier": "somebody"}],
    "prompt_cache_key": [{"prompt_cache_key": "any"}],
    "include_timings": [{"include_timings": True}],
}
CHAT_CASES = COMMON | {
    "messages": [
        {"messages": [{"role": "system", "content": "Be brief."}, *CHAT["messages"]]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"messages": [CHAT["messages"][0] | {"cache_control": {"type": "ephemeral"}}]},
    ],
    "max_completion_tokens": [{"max_completion_tokens": 12}],
    "logprobs": [{"logprobs": True}],
    "top_logprobs": [{"logprobs": True, "top_logprobs": 20}],
    "return_tokens_as_token_ids": [
        {"logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True}
    ],
    "add_generation_prompt": [{"add_generation_prompt": False}],
    "continue_final_message": [
        {
            "continue_final_message": True,
            "echo": True,
            "messages": [*CHAT["messages"], {"role": "assistant", "content": "Well, I"}],
        }
    ],
    "chat_template": [{"chat_template": "{{ messages[0].content }} {{ mood }}"}],
    "chat_template_kwargs": [{"chat_template_kwargs": {"mood": "good"}}],
}
COMPLETION_CASES = COMMON | {
    "prompt": [{"prompt": ["One", "Two"]}, {"prompt": [5, 6, 7]}, {"prompt": [[5, 6], [7]]}],
    "best_of": [{"best_of": 2, "n": 2}, {"best_of": 2, "n": 2, "echo": True, "max_tokens": 0}],
    "logprobs": [{"logprobs": 0}, {"logprobs": 5}, {"logprobs": 3, "echo": True, "n": 2}],
    "return_tokens_as_token_ids": [{"logprobs": 1, "return_tokens_as_token_ids": True}],
}
STREAM_OPTIONS: dict[str, Fields] = {
    "stream_options.continuous_usage_stats": {"continuous_usage_stats": True},
    "stream_options.include_obfuscation": {"include_obfuscation": False},
}
STRUCTURE: dict[str, list[Fields]] = {
    "response_format": [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
    ],
    "structured_outputs": [{"structured_outputs": {"choice": ["a", "b"]}}],
    "guided_json": [{"guided_json": {"type": "object"}}],
    "guided_regex": [{"guided_regex": "[a-z]+"}],
    "guided_choice": [{"guided_choice": ["a", "b"]}],
    "guided_grammar": [{"guided_grammar": 'start: "a"'}],
}
TOOLS: list[Fields] = [{"type": "function", "function": {"name": "f"}}]
NAMED: Fields = {"type": "function", "function": {"name": "f"}}
CHOICES: list[object] = [
    "none",
    "auto",
    "required",
    NAMED,
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
]
CALLING: dict[str, list[Fields]] = {
    "tools": [{"tools": TOOLS}],
    "tool_choice": [{"tools": TOOLS, "tool_choice": choice} for choice in CHOICES],
    "parallel_tool_calls": [{"tools": TOOLS, "parallel_tool_calls": False}],
}
TRUSTING: dict[str, dict[str, object]] = {"router": {"trust_request_chat_template": True}}


def supported(api: str) -> set[str]:
    return {row.field for row in rows() if getattr(row, api) == "yes"}


def test_there_is_a_case_for_every_supported_field() -> None:
    assert supported("chat") <= CHAT_CASES.keys() | STRUCTURE.keys() | CALLING.keys()
    assert supported("completions") <= COMPLETION_CASES.keys() | STRUCTURE.keys()


def test_a_chat_stream_taken_together_is_the_whole_answer_for_every_field(texts: Texts) -> None:
    async def test(h: House) -> None:
        for name, cases in (CHAT_CASES | STRUCTURE | CALLING).items():
            for case in cases:
                fields = CHAT | case
                if "max_completion_tokens" in case:
                    del fields["max_tokens"]
                options = {"stream_options": STREAM_OPTIONS.get(name, {})}
                assert await streamed_chat(h, **fields, **options) == await whole_chat(
                    h, **fields
                ), name

    in_house(texts, test)


def test_a_completion_stream_taken_together_is_the_whole_answer_for_every_field(
    texts: Texts,
) -> None:
    async def test(h: House) -> None:
        for name, cases in (COMPLETION_CASES | STRUCTURE).items():
            for case in cases:
                fields = COMPLETION | case
                options = {"stream_options": STREAM_OPTIONS.get(name, {})}
                assert await streamed_completion(h, **fields, **options) == await whole_completion(
                    h, **fields
                ), name

    in_house(texts, test)


def test_neutral_values_change_nothing_and_others_are_refused_by_name(texts: Texts) -> None:
    async def test(h: House) -> None:
        chat, completion = await whole_chat(h, **CHAT), await whole_completion(h, **COMPLETION)
        for name, values in NEUTRAL.items():
            for value in values:
                assert await whole_chat(h, **CHAT, **{name: value}) == chat, name
                assert await whole_completion(h, **COMPLETION, **{name: value}) == completion
            for ask, fields in ((whole_chat, CHAT), (whole_completion, COMPLETION)):
                with pytest.raises(openai.BadRequestError) as caught:
                    await ask(h, **fields, **{name: ["something"]})
                assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")

    in_house(texts, test)


def in_house(texts: Texts, test: Any) -> None:
    async def run() -> None:
        async with house(texts, language=LANGUAGE, overrides=TRUSTING) as h:
            await test(h)

    asyncio.run(run())
