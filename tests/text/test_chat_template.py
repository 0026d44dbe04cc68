"""Chat templates: equal to transformers' rendering, and safe against what strangers write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from core.errors import BadRequestError
from text.chat_template import ChatTemplate
from text.model_card import ModelCard
from text.template_sandbox import MAX_RENDER_S

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3_LIKE = """\
{{- bos_token }}
{%- if tools is not none and tools %}
    {{- "Tools:\n" }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if loop.index0 > 40 %}{% break %}{% endif %}
    {%- if message.role not in ("system", "user", "assistant") %}
        {{- raise_exception("unknown role " ~ message.role) }}
    {%- endif %}
    {{- "<|start|>" + message["role"] + "<|end|>\n\n" + message["content"] | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|start|>assistant<|end|>\n\n" }}
{%- endif %}
"""
TRACKING = """\
{% set state = namespace(seen=0, last="") %}
{% macro show(message) %}[{{ message.role }}: {{ message.content }}]{% endmacro %}
{% for message in messages if message.role != "system" %}
  {% set state.seen = state.seen + 1 %}
  {% set state.last = state.last ~ message.role[0] %}
  {% generation %}{{ show(message) }}{% endgeneration %}
{% else %}
nobody
{% endfor %}
{{ state.seen }} {{ state.last }} {{ "-" * 3 }} {{ 2 ** 3 }}
{{ messages | map(attribute="role") | join(",") }}
{{ extra is defined and extra }}
"""
USER: dict[str, object] = {"role": "user", "content": "  <b>Hi</b> & 'quotes' ünïcödé 😀 "}
CHAT: list[dict[str, object]] = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "1 + 1?\n"},
]
TOOLS: list[dict[str, object]] = [
    {"type": "function", "function": {"name": "add", "parameters": {"a": "<int>", "ä": [1, 2]}}}
]


def by_transformers(
    template: str, messages: Sequence[Mapping[str, object]], **variables: object
) -> str:
    render = cast(Callable[..., tuple[list[str], object]], render_jinja_template)
    return render([list(messages)], chat_template=template, **variables)[0][0]


@pytest.mark.parametrize("template", [CHATML, LLAMA3_LIKE, TRACKING])
@pytest.mark.parametrize("messages", [CHAT, [USER], CHAT[:3]])
@pytest.mark.parametrize("prompt", [True, False])
def test_rendering_equals_transformers(
    template: str, messages: list[dict[str, object]], prompt: bool
) -> None:
    ours = ChatTemplate(template, "<s>", "</s>").render(
        messages, tools=TOOLS, add_generation_prompt=prompt, kwargs={"extra": "given"}
    )
    assert ours == by_transformers(
        template,
        messages,
        tools=TOOLS,
        add_generation_prompt=prompt,
        extra="given",
        bos_token="<s>",
        eos_token="</s>",
    )


@pytest.mark.parametrize("template", [CHATML, LLAMA3_LIKE])
@pytest.mark.parametrize("ending", ["", "   ", "\n"])
def test_continuing_the_final_message_equals_transformers(template: str, ending: str) -> None:
    messages: list[dict[str, object]] = [
        USER,
        {"role": "assistant", "content": f"I think{ending}"},
    ]
    ours = ChatTemplate(template, "<s>", "</s>").render(messages, continue_final_message=True)
    assert ours == by_transformers(
        template, messages, continue_final_message=True, bos_token="<s>", eos_token="</s>"
    )


def test_the_default_models_template_writes_its_own_system_message(default_card: ModelCard) -> None:
    card = default_card
    template = ChatTemplate(card.chat_template, card.bos_token, card.eos_token)
    text = template.render([{"role": "user", "content": "Hi"}])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert card.chat_template is not None
    assert text == by_transformers(
        card.chat_template, [{"role": "user", "content": "Hi"}], add_generation_prompt=True
    )


def test_a_text_part_can_be_continued() -> None:
    template = ChatTemplate("{% for p in messages[-1].content %}<{{ p.text }}>{% endfor %}")
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    text = template.render([{"role": "user", "content": parts}], continue_final_message=True)
    assert text == "<one><two"
    assert parts[1]["text"] == "two", "the caller's message is left as it was"


@pytest.mark.parametrize(
    ("template", "messages", "reason"),
    [
        (LLAMA3_LIKE, [{"role": "wizard", "content": "x"}], "unknown role wizard"),
        (CHATML, [{"role": "user"}], "has no attribute 'content'"),
        (CHATML, [{"role": "user", "content": None}], "cannot render"),
        (CHATML, [{"role": "user", "content": [{"type": "text"}]}], "cannot render"),
        (CHATML, [{"content": "x"}], "has no attribute 'role'"),
        (CHATML, [], "must not be empty"),
        ("{% for %}", [USER], "malformed"),
        ("{{ 1 / 0 }}", [USER], "division"),
        (None, [USER], "no chat template"),
    ],
)
def test_what_cannot_be_rendered_is_the_clients_fault(
    template: str | None, messages: list[dict[str, object]], reason: str
) -> None:
    with pytest.raises(BadRequestError, match=reason) as caught:
        ChatTemplate(template).render(messages)
    assert caught.value.param == "messages"
    assert caught.value.http_status == 400


def test_a_message_that_is_not_printed_cannot_be_continued() -> None:
    with pytest.raises(BadRequestError, match="cannot be continued"):
        ChatTemplate("nothing").render([USER], continue_final_message=True)
    with pytest.raises(BadRequestError, match="no text to continue"):
        ChatTemplate(CHATML).render([{"role": "user"}], continue_final_message=True)


def test_variables_of_clients_must_not_replace_ours() -> None:
    template = ChatTemplate("{{ bos_token }}{{ mood }}", "<s>")
    assert template.render([USER], kwargs={"mood": "good"}) == "<s>good"
    with pytest.raises(BadRequestError, match="bos_token") as caught:
        template.render([USER], kwargs={"bos_token": ""})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10 ** 12 }}",
        "{{ 10 ** 12 * [1] }}",
        "{{ 9 ** 99999999 }}",
        "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{%endfor%}",
        "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{%endfor%}",
        "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% set a = 'a' * 999999 %}{% for i in range(99) %}{{ a }}{% endfor %}",
        "{{ range(10 ** 9) }}",
        "{{ strftime_now('%999999999d') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ ''.__class__.__mro__[1] }}",
        "{{ lipsum(9999) }}",
    ],
)
def test_hostile_templates_end_and_are_refused(template: str) -> None:
    with pytest.raises(BadRequestError):
        ChatTemplate(template).render([dict(USER)])


@pytest.mark.parametrize(
    "template", ["{% if 1 %}" * 3000, "{{" + "(" * 9000, "{{" + "-" * 90000 + "1}}"]
)
def test_templates_that_break_the_parser_are_refused(template: str) -> None:
    with pytest.raises(BadRequestError, match="malformed"):
        ChatTemplate(template).render([USER])


class JumpingClock:
    """Each look at it finds a second gone."""

    def __init__(self) -> None:
        self.looks = 0

    def now(self) -> float:
        self.looks += 1
        return float(self.looks)


def test_a_slow_rendering_ends_at_its_deadline() -> None:
    clock = JumpingClock()
    template = ChatTemplate("{% for a in range(1000) %}{% endfor %}", clock=clock)
    with pytest.raises(BadRequestError, match="takes too long"):
        template.render([USER])
    assert clock.looks == int(MAX_RENDER_S) + 2


def test_another_template_knows_the_same_model() -> None:
    other = ChatTemplate(CHATML, "<s>", "</s>").with_template("{{ bos_token }}{{ mood }}")
    assert other.render([USER], kwargs={"mood": "good"}) == "<s>good"
    with pytest.raises(BadRequestError) as caught:
        ChatTemplate(CHATML).with_template("{% if")
    assert caught.value.param == "chat_template"
