"""The bodies of OpenAI's two APIs as we accept them, and how they become a `RequestSpec`.

Types are strict, unknown fields are refused by name. What OpenAI knows and we don't is accepted
only with a value that asks for nothing (`"tools": null`). Ranges are checked by `RequestSpec`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from core.errors import BadRequestError
from router.http.strict import Strict
from router.http.structure_fields import StructureFields
from router.http.tool_fields import ToolCall, ToolChoice, ToolFields, tooling_of
from router.request_spec import MAX_MESSAGES, ChatPrompt, RequestSpec, chat_message

MAX_PROMPTS = 128
"""Prompts of one completion request."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "function_call": (None, "none"),
    "functions": (None, []),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "suffix": (None, ""),
    "verbosity": (None,),
    "web_search_options": (None,),
}
"""Fields of OpenAI's API that are not supported, with the values that change nothing."""


class StreamOptions(Strict):
    include_usage: bool | None = None


class _Body(StructureFields):
    """What both APIs share. None, given or not, means the default."""

    model: str
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    include_timings: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if k not in NEUTRAL or not _is_neutral(k, v)}

    @model_validator(mode="after")
    def _usage_needs_a_stream(self) -> _Body:
        if self.stream_options is not None and not self.stream:
            raise BadRequestError(
                "stream_options is only allowed when stream is true", param="stream_options"
            )
        return self

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def _common(self) -> dict[str, Any]:
        """Fields of a `RequestSpec` that mean the same in both APIs."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        given = {
            "n": self.n,
            "temperature": self.temperature,
            "top_p": self.top_p,
            # vLLM's users write -1 for the whole vocabulary.
            "top_k": 0 if self.top_k == -1 else self.top_k,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": None if self.logit_bias is None else _token_keys(self.logit_bias),
            "seed": self.seed,
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
            "stop": stop,
            "stop_token_ids": tuple(self.stop_token_ids or ()),
            "priority": self.priority,
            "cache_salt": self.cache_salt,
            "tenant": self.user,
            "output_format": self.output_format(),
        }
        return {"model": self.model} | {k: v for k, v in given.items() if v is not None}


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    """What an answer brought may be sent back as it is: its nulls say nothing."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None

    def to_template(self, index: int) -> dict[str, object]:
        """As templates know it; parts become lines of one text. `index` is its place."""
        content = self.content
        if content is None and not self.tool_calls and not self.refusal:
            param = f"messages.{index}.content"
            raise BadRequestError(
                f"'{param}' is required", param=param, code="missing_required_parameter"
            )
        parts = [content] if isinstance(content, str) else [part.text for part in content or ()]
        return chat_message(
            self.role,
            "\n".join(parts) or self.refusal or "",
            self.name,
            tool_calls=[call.to_template() for call in self.tool_calls or ()],
            tool_call_id=self.tool_call_id,
            thoughts=self.reasoning_content,
        )


class ChatBody(_Body):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolFields] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def specs(self) -> list[RequestSpec]:
        """The request, as a list of one. Raises BadRequestError."""
        tooling = tooling_of(self.tools, self.tool_choice, self.parallel_tool_calls)
        prompt = ChatPrompt(
            tuple(message.to_template(i) for i, message in enumerate(self.messages)),
            () if tooling is None else tooling.for_template(),
        )
        spec = RequestSpec(
            prompt=prompt,
            prompt_param="messages",
            max_tokens=self._max_tokens(),
            logprobs=self._logprobs(),
            logprobs_param="top_logprobs",
            tooling=tooling,
            **self._common(),
        )
        return [spec]

    def _max_tokens(self) -> int | None:
        newer, older = self.max_completion_tokens, self.max_tokens
        if newer is not None and older is not None and newer != older:
            raise BadRequestError(
                f"max_tokens is {older} and max_completion_tokens {newer}; give one of them",
                param="max_completion_tokens",
            )
        return older if newer is None else newer

    def _logprobs(self) -> int | None:
        if not self.logprobs:
            if self.top_logprobs is not None:
                raise BadRequestError(
                    "top_logprobs needs logprobs to be true", param="top_logprobs"
                )
            return None
        return self.top_logprobs or 0


class CompletionBody(_Body):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool | None = None

    def specs(self) -> list[RequestSpec]:
        """One request for each prompt. Raises BadRequestError."""
        if self.echo and self.logprobs is not None:
            raise BadRequestError(
                "echo together with logprobs is not supported: prompts have none", param="logprobs"
            )
        common = self._common()
        return [
            RequestSpec(prompt=prompt, max_tokens=self.max_tokens, logprobs=self.logprobs, **common)
            for prompt in self._prompts()
        ]

    def _prompts(self) -> list[str | tuple[int, ...]]:
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise BadRequestError("prompt is an empty list", param="prompt")
        if isinstance(prompt[0], int):
            return [tuple(t for t in prompt if isinstance(t, int))]
        if len(prompt) > MAX_PROMPTS:
            raise BadRequestError(
                f"prompt has {len(prompt)} entries, more than {MAX_PROMPTS}", param="prompt"
            )
        return [p if isinstance(p, str) else tuple(p) for p in prompt if not isinstance(p, int)]


def _is_neutral(name: str, value: object) -> bool:
    return any(type(value) is type(neutral) and value == neutral for neutral in NEUTRAL[name])


def _token_keys(logit_bias: dict[str, float]) -> dict[int, float]:
    """JSON's keys are strings; OpenAI's are token ids in decimal."""
    for key in logit_bias:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise BadRequestError(
                f"logit_bias has the key '{key[:32]}', which is no token id", param="logit_bias"
            )
    return {int(key): value for key, value in logit_bias.items()}
