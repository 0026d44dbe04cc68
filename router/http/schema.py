"""The bodies of OpenAI's two APIs as we accept them, and how they become a `RequestSpec`.

Types are strict, unknown fields are refused by name. What OpenAI knows and we don't is accepted
only with a value that asks for nothing (`"tools": null`). Ranges are checked by `RequestSpec`.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from core.errors import BadRequestError
from router.http.cache_control import CacheControl
from router.http.conversation import ChatMessage, TemplateFields
from router.http.strict import Listed, Named, Off, Strict
from router.http.structure_fields import StructureFields
from router.http.tool_fields import ToolChoice, tooling_of
from router.request_spec import (
    MAX_MESSAGES,
    RequestSpec,
    beam_spec,
)

MAX_PROMPTS = 128
"""Prompts of one completion request."""

DEFAULT_COMPLETION_TOKENS = 16
"""As OpenAI's and vLLM's, for completions that don't say; null is no limit."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (None,),
    "documents": (None, []),
    "function_call": (None, "none"),
    "functions": (None, []),
    "include_reasoning": (None, True),
    "kv_transfer_params": (None,),
    "logits_processors": (None, []),
    "logprob_token_ids": (None, []),
    "media_io_kwargs": (None, {}),
    "metadata": (None, {}),
    "mm_processor_kwargs": (None, {}),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "prediction": (None,),
    "prompt_cache_options": (None, {}),
    "prompt_cache_retention": (None, "in-memory", "in_memory"),
    "prompt_embeds": (None,),
    "reasoning_effort": (None,),
    "repetition_detection": (None,),
    "request_id": (None,),
    "return_prompt_text": (None, False),
    "return_token_offsets": (None, False),
    "service_tier": (None, "auto", "default"),
    "session_id": (None,),
    "spaces_between_special_tokens": (None, True, False),
    "store": (None, False),
    "stream_interval": (None, 1),
    "suffix": (None, ""),
    "thinking_token_budget": (None,),
    "truncation_side": (None, "left"),
    "verbosity": (None,),
    "watermarking": (None, False),
    "vllm_xargs": (None, {}),
    "web_search_options": (None,),
}
"""Fields of OpenAI's and vLLM's APIs that are not supported, with the values that change nothing.

Tokens are spelt as they are, so that `spaces_between_special_tokens` has nothing to change; and a
request's name is in its header, where proxies and logs see it too.
"""


class StreamOptions(Strict):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Off | None = None


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
    logit_bias: Named[float] | None = None
    bad_words: Listed[str] | None = None
    allowed_token_ids: Listed[int] | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | Listed[str] | None = None
    stop_token_ids: Listed[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    cache_control: CacheControl | None = None
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

    @property
    def continuous_usage(self) -> bool:
        """As in vLLM, only beside the usage at the end."""
        options = self.stream_options
        return self.include_usage and bool(options and options.continuous_usage_stats)

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
            "bad_words": tuple(self.bad_words or ()),
            "allowed_token_ids": _tuple_or_none(self.allowed_token_ids),
            "prompt_logprobs": self.prompt_logprobs,
            "seed": self.seed,
            "beams": beam_spec(self.use_beam_search, self.length_penalty, self.early_stopping),
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
            "stop": stop,
            "stop_token_ids": tuple(self.stop_token_ids or ()),
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "skip_special_tokens": self.skip_special_tokens,
            "truncate_prompt_tokens": self.truncate_prompt_tokens,
            "add_special_tokens": self.add_special_tokens,
            "echo": self.echo,
            "priority": self.priority,
            "cache_salt": self.cache_salt,
            "cache_ttl_s": None if self.cache_control is None else self.cache_control.ttl_s,
            "tenant": self.safety_identifier if self.user is None else self.user,
            "tenant_param": "safety_identifier" if self.user is None else "user",
            "output_format": self.output_format(),
        }
        return {"model": self.model} | {k: v for k, v in given.items() if v is not None}


class ChatBody(TemplateFields, _Body):
    """POST /v1/chat/completions."""

    messages: Listed[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def specs(self) -> list[RequestSpec]:
        """The request, as a list of one. Raises BadRequestError."""
        tooling = tooling_of(self.tools, self.tool_choice, self.parallel_tool_calls)
        spec = RequestSpec(
            prompt=self.chat_prompt(self.messages, tooling),
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
            if self.top_logprobs:
                raise BadRequestError(
                    "top_logprobs needs logprobs to be true", param="top_logprobs"
                )
            return None
        return self.top_logprobs or 0


class CompletionBody(_Body):
    """POST /v1/completions."""

    prompt: str | Listed[str] | Listed[int] | Listed[Listed[int]]
    logprobs: int | None = None
    best_of: int | None = None

    def specs(self) -> list[RequestSpec]:
        """One request for each prompt. Raises BadRequestError."""
        self._check_best_of()
        common = self._common()
        if self.echo and self.logprobs is not None:
            # The prompt's tokens stand among the choice's own
            common["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        return [
            RequestSpec(
                prompt=prompt,
                max_tokens=self.max_tokens,
                default_max_tokens=self._default_max_tokens(),
                logprobs=self.logprobs,
                best_of=self.best_of,
                **common,
            )
            for prompt in self._prompts()
        ]

    def _default_max_tokens(self) -> int | None:
        return None if "max_tokens" in self.model_fields_set else DEFAULT_COMPLETION_TOKENS

    def _check_best_of(self) -> None:
        if self.streams and self.best_of is not None and self.best_of > (self.n or 1):
            raise BadRequestError(
                "best_of above n cannot be streamed: what is best is known at the end",
                param="best_of",
            )

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


def _tuple_or_none(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)
