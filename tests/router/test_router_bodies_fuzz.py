"""Whatever a client sends, it is never answered with a 5xx: a fault is a 4xx that says which."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from typing import Any

import httpx
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.http.responses_schema import ResponsesBody
from router.http.schema import NEUTRAL, ChatBody, CompletionBody

numbers = st.one_of(
    st.integers(-3, 40),
    st.integers(),
    st.floats(),
    st.floats(0, 2),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=12))
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
token_ids = st.lists(st.integers(-1, 60_000), max_size=5)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": st.text()},
        optional={"name": st.text(max_size=4), "tool_calls": anything},
    ),
    max_size=3,
)
FIELDS = {
    "n": st.integers(-1, 3),
    "max_tokens": st.integers(-1, 9) | st.integers(),
    "temperature": numbers,
    "top_p": numbers,
    "top_k": st.integers(-2, 50),
    "min_p": numbers,
    "presence_penalty": numbers,
    "frequency_penalty": numbers,
    "repetition_penalty": numbers,
    "logit_bias": st.dictionaries(
        st.integers().map(str) | st.text(max_size=3), numbers, max_size=3
    ),
    "logprobs": st.booleans() | st.integers(-1, 25),
    "top_logprobs": st.integers(-1, 25),
    "seed": st.integers(),
    "min_tokens": st.integers(-1, 9),
    "ignore_eos": st.booleans(),
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=18),
    "stop_token_ids": token_ids,
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    "user": st.text(),
    "priority": st.integers(),
    "cache_salt": st.text(),
    "echo": st.booleans(),
    "best_of": st.integers(-1, 4),
    "bad_words": st.lists(st.text(max_size=5), max_size=3),
    "allowed_token_ids": token_ids,
    "prompt_logprobs": st.integers(-1, 21),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "truncate_prompt_tokens": st.integers(-2, 5),
    "add_special_tokens": st.booleans(),
    "add_generation_prompt": st.booleans(),
    "continue_final_message": st.booleans(),
    "chat_template": st.text(max_size=8) | st.sampled_from(["{{ messages }}", "{% if"]),
    "chat_template_kwargs": st.dictionaries(st.text(max_size=8), anything, max_size=2),
    "return_token_ids": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
    "use_beam_search": st.booleans(),
    "length_penalty": numbers,
    "early_stopping": st.booleans(),
    "include_timings": st.booleans(),
    "tools": anything,
    "tool_choice": st.sampled_from(["none", "auto", "required"]) | anything,
    "response_format": anything,
    "structured_outputs": st.dictionaries(
        st.sampled_from(["json", "regex", "choice", "grammar", "json_object"]), anything, max_size=2
    ),
    "guided_json": anything | st.sampled_from(["{}", '{"type": "string"}', "NaN"]),
    "guided_regex": st.text(max_size=5) | st.sampled_from(["a+", "a("]),
    "guided_choice": st.lists(st.text(max_size=3), max_size=3),
    "guided_grammar": st.text(max_size=5) | st.sampled_from(['start: "a"', 'root ::= "a"']),
    "unheard_of": anything,
}


def bodies(prompt: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly well-typed requests, some with one field of any type at all."""
    model = st.sampled_from([MODEL, MODEL, MODEL, "other"])
    few = st.lists(st.sampled_from(sorted(FIELDS)), max_size=4, unique=True)
    typed = few.flatmap(lambda names: st.fixed_dictionaries({n: FIELDS[n] for n in names}))
    every = sorted({*FIELDS, *ChatBody.model_fields, *CompletionBody.model_fields, *NEUTRAL})
    wild = st.dictionaries(st.sampled_from(every), anything, max_size=1)
    base = st.fixed_dictionaries({"model": model, "max_tokens": st.integers(1, 4), **prompt})
    mixed = st.tuples(base, typed, wild).map(lambda parts: parts[0] | parts[1] | parts[2])
    return st.one_of(base, mixed)


def response_bodies() -> st.SearchStrategy[dict[str, Any]]:
    """The same for /v1/responses: fields that both have, items, and what only it has."""
    parts = st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["input_text", "output_text", "input_image"])},
            optional={"text": st.text(max_size=5)},
        ),
        max_size=2,
    )
    item = st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(
                ["message", "function_call", "function_call_output", "reasoning", "other"]
            ),
            "role": st.sampled_from(["user", "assistant", "developer", "tool"]),
            "content": st.text(max_size=9) | parts | anything,
            "call_id": st.text(max_size=3),
            "name": st.text(max_size=3),
            "arguments": st.text(max_size=3),
            "output": st.text(max_size=3) | parts,
            "summary": st.lists(anything, max_size=1),
        },
    )
    own = st.dictionaries(
        st.sampled_from(sorted(ResponsesBody.model_fields.keys() - {"model", "input"})),
        anything,
        max_size=2,
    )
    given = st.text(max_size=20) | st.lists(item, max_size=3) | anything
    base = st.fixed_dictionaries(
        {"model": st.just(MODEL), "input": given, "max_output_tokens": st.integers(1, 4)},
        optional={"stream": st.booleans()},
    )
    return st.tuples(base, own).map(lambda parts: parts[0] | parts[1])


prompts = st.one_of(
    st.text(), st.lists(st.text(), max_size=3), token_ids, st.lists(token_ids, max_size=3)
)
requests = st.one_of(
    st.tuples(st.just("/v1/completions"), bodies({"prompt": prompts})),
    st.tuples(st.just("/v1/chat/completions"), bodies({"messages": messages})),
    st.tuples(st.just("/v1/responses"), response_bodies()),
    st.tuples(
        st.just("/tokenize"),
        st.one_of(
            st.fixed_dictionaries({"prompt": st.text() | anything}),
            st.fixed_dictionaries(
                {"messages": messages},
                optional={
                    "add_generation_prompt": st.booleans() | anything,
                    "continue_final_message": st.booleans(),
                    "chat_template_kwargs": anything,
                    "tools": anything,
                },
            ),
        ),
    ),
    st.tuples(
        st.just("/detokenize"), st.fixed_dictionaries({"tokens": token_ids | st.lists(anything)})
    ),
)


def test_no_body_is_answered_with_a_server_error(texts: Texts) -> None:
    ask_at_random(texts, num_bodies=250)


def test_no_body_that_a_guard_has_read_is_answered_with_a_server_error(texts: Texts) -> None:
    ask_at_random(texts, num_bodies=100, guarded=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_body_of_twenty_thousand_is_answered_with_a_server_error(texts: Texts) -> None:
    ask_at_random(texts, num_bodies=20_000)


def ask_at_random(texts: Texts, *, num_bodies: int, guarded: bool = False) -> None:
    """Nothing is left behind: no request in the house, no attempt on a worker, no task, and no
    failure of a task that nobody heard of."""
    unheard: list[object] = []
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: unheard.append(context))
        made = house(texts, decode=1, overrides={"guard": {"enabled": guarded}})
        h = runner.run(made.__aenter__())

        statuses: Counter[int] = Counter()

        @settings(max_examples=num_bodies, deadline=None, suppress_health_check=list(HealthCheck))
        @given(requests)
        def check(request: tuple[str, dict[str, Any]]) -> None:
            path, body = request
            response = runner.run(post(h, path, json.dumps(body)))
            statuses[response.status_code] += 1
            described_well(response, body)

        @settings(max_examples=num_bodies // 5, deadline=None)
        @given(st.binary(max_size=200))
        def check_bytes(content: bytes) -> None:
            response = runner.run(post(h, "/v1/completions", content))
            assert response.status_code == 400
            described_well(response, {})

        try:
            num_tasks = runner.run(tasks_at_rest())
            check()
            check_bytes()
            assert runner.run(h.router.door.drained(DEADLINE_S))
            runner.run(h.d.until(lambda w: not w.num_open))
            assert runner.run(tasks_at_rest()) <= num_tasks
            assert statuses[200] > 5 and statuses[400] > 5, "both kinds were tried"
            gc.collect()
            assert not unheard
        finally:
            runner.run(made.__aexit__(None, None, None))


async def tasks_at_rest() -> int:
    return len(asyncio.all_tasks())


async def post(h: House, path: str, content: str | bytes) -> httpx.Response:
    # The loop stands still between examples, and an idle connection may be closed then.
    return await h.http.post(path, content=content, headers={"connection": "close"})


def described_well(response: httpx.Response, body: dict[str, Any]) -> None:
    assert response.status_code in (200, 400, 404), (response.text, body)
    if response.status_code == 200:
        assert '"error": {' not in response.text, response.text
    else:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"] and error["code"]
        assert error["type"] == "invalid_request_error"
