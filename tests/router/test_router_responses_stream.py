"""Items of a response grow by deltas of any mixture; the events tell all of them, once."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from router.http.chat_deltas import ChatDelta
from router.http.responses_input import (
    Conversation,
    FunctionCallItem,
    FunctionOutputItem,
    MessageItem,
    ReasoningItem,
)
from router.http.responses_items import OutputItems
from router.http.responses_schema import FunctionTool, JsonSchemaFormat
from router.message.reader import CallDelta

Json = dict[str, Any]


def accumulated(events: list[Json]) -> str:
    """The text that a client has from the deltas alone."""
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


def told(deltas: list[ChatDelta], reason: str | None = "stop") -> tuple[list[Json], OutputItems]:
    items = OutputItems("id")
    events = [event for delta in deltas for event in items.take(delta)]
    return [*events, *items.end(reason)], items


def rebuilt(events: list[Json]) -> list[Json]:
    """Items as a client makes them: from what was added, the deltas, and what was done."""
    items: list[Json] = []
    for event in events:
        name = event["type"].removeprefix("response.")
        if name == "output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
            continue
        item = items[event["output_index"]]
        if name == "output_item.done":
            assert event["item"] == item | {"status": event["item"]["status"]}
            items[event["output_index"]] = event["item"]
        elif item["type"] == "function_call":
            grow_call(item, name, event)
        else:
            grow_text(item, name, event)
    return items


def grow_call(item: Json, name: str, event: Json) -> None:
    if name == "function_call_arguments.delta":
        item["arguments"] += event["delta"]
    else:
        assert (name, event["arguments"]) == ("function_call_arguments.done", item["arguments"])


def grow_text(item: Json, name: str, event: Json) -> None:
    if name == "content_part.added":
        assert event["content_index"] == len(item["content"]) == 0
        item["content"] = [event["part"]]
        return
    part = item["content"][event["content_index"]]
    if name.endswith("_text.delta"):
        part["text"] += event["delta"]
        if "logprobs" in event:
            part["logprobs"] = [*part["logprobs"], *event["logprobs"]]
    elif name == "content_part.done":
        assert event["part"] == part
    else:
        assert name == f"{part['type']}.done" and event["text"] == part["text"]


def test_two_calls_and_a_text_are_three_items() -> None:
    deltas = [
        ChatDelta(text="Let me see. "),
        ChatDelta(calls=(CallDelta(0, "call_1", "weather"),)),
        ChatDelta(calls=(CallDelta(0, arguments='{"city":'),)),
        ChatDelta(calls=(CallDelta(0, arguments='"Paris"}'),)),
        ChatDelta(calls=(CallDelta(1, "call_2", "time", "{}"),)),
    ]
    events, items = told(deltas, "tool_calls")
    assert rebuilt(events) == items.items
    message, weather, time = items.items
    assert message["content"][0]["text"] == "Let me see. "
    assert (weather["call_id"], weather["arguments"]) == ("call_1", '{"city":"Paris"}')
    assert (time["name"], time["arguments"], time["status"]) == ("time", "{}", "completed")


def test_reasoning_is_an_item_of_its_own_and_counted() -> None:
    deltas = [
        ChatDelta(reasoning="Hm", num_tokens=2),
        ChatDelta(reasoning=" so", num_tokens=1),
        ChatDelta(text="Yes", num_tokens=1),
    ]
    events, items = told(deltas)
    assert rebuilt(events) == items.items
    assert [item["type"] for item in items.items] == ["reasoning", "message"]
    assert items.items[0]["content"] == [{"type": "reasoning_text", "text": "Hm so"}]
    assert items.num_reasoning_tokens == 3


def test_an_answer_without_text_is_an_empty_message() -> None:
    events, items = told([ChatDelta()])
    assert rebuilt(events) == items.items
    assert [part["text"] for part in items.items[0]["content"]] == [""]


def test_only_the_last_item_of_an_answer_cut_short_is_incomplete() -> None:
    _, items = told([ChatDelta(reasoning="Hm"), ChatDelta(text="Y")], "length")
    assert [item["status"] for item in items.items] == ["completed", "incomplete"]


PIECES = st.one_of(
    st.builds(ChatDelta, text=st.text(max_size=4), num_tokens=st.just(1)),
    st.builds(ChatDelta, reasoning=st.text(max_size=4), num_tokens=st.just(1)),
    st.builds(
        lambda logprob: ChatDelta(logprobs=({"token": "x", "logprob": logprob},)),
        st.floats(-9, 0),
    ),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, max_size=8), st.sampled_from(["stop", "length"]))
def test_a_client_that_follows_the_events_has_the_items(
    deltas: list[ChatDelta], reason: str
) -> None:
    events, items = told(deltas, reason)
    assert rebuilt(events) == items.items
    assert accumulated(events) == "".join(delta.text for delta in deltas)
    assert len({item["id"] for item in items.items}) == len(items.items)


def test_one_turn_of_the_model_is_one_message_of_a_chat() -> None:
    conversation = Conversation(
        "Be brief",
        [
            MessageItem(role="user", content="Weather?"),
            ReasoningItem.model_validate(
                {
                    "type": "reasoning",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "Call it"}],
                }
            ),
            MessageItem(role="assistant", content="A moment"),
            FunctionCallItem(type="function_call", call_id="1", name="w", arguments="{}"),
            FunctionCallItem(type="function_call", call_id="2", name="t", arguments="[]"),
            FunctionOutputItem(type="function_call_output", call_id="1", output="sunny"),
            MessageItem(role="assistant", content="Sunny"),
            MessageItem(role="assistant", content="Indeed"),
        ],
    )
    system, user, turn, output, said, added = conversation.messages
    assert system == {"role": "system", "content": "Be brief"}
    assert user == {"role": "user", "content": "Weather?"}
    assert turn["reasoning_content"] == "Call it" and turn["content"] == "A moment"
    assert [call["id"] for call in turn["tool_calls"]] == ["1", "2"]
    assert turn["tool_calls"][0]["function"] == {"name": "w", "arguments": "{}"}
    assert output == {"role": "tool", "tool_call_id": "1", "content": "sunny"}
    assert (said["content"], added["content"]) == ("Sunny", "Indeed")
    assert conversation.place("messages.1.content") == "input.0.content"
    assert conversation.place("messages.3.tool_call_id") == "input.5"
    assert conversation.place("messages") == conversation.place("messages.0") == "input"


def test_a_turn_that_broke_off_while_it_reasoned_is_a_message_still() -> None:
    item = ReasoningItem(type="reasoning", summary=[])
    [message] = Conversation(None, [item]).messages
    assert message == {"role": "assistant", "reasoning_content": "", "content": ""}


def test_tools_and_formats_are_handed_on_as_the_chat_knows_them() -> None:
    parameters = {"type": "object", "properties": {}}
    tool = FunctionTool(type="function", name="f", parameters=parameters, strict=True)
    function = {"name": "f", "parameters": parameters, "strict": True}
    assert tool.to_chat() == {"type": "function", "function": function}
    given = {"type": "json_schema", "name": "s", "schema": parameters, "strict": True}
    schema = {"name": "s", "schema": parameters, "strict": True}
    expected = {"type": "json_schema", "json_schema": schema}
    assert JsonSchemaFormat.model_validate(given).to_chat() == expected
