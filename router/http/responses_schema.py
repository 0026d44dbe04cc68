"""The body of /v1/responses, and how it becomes the body of a chat.

Whatever the two APIs share is handed on, so that it means the same and has the same limits. Nothing
is stored: a conversation is sent whole each time.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationError

from core.errors import BadRequestError
from router.http.cache_control import CacheControl
from router.http.responses_input import Conversation, Input
from router.http.schema import ChatBody
from router.http.strict import JsonObject, Listed, Named, Off, Strict
from router.request_spec import RequestSpec

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
"""OpenAI's limits."""

SHOWS_LOGPROBS = "message.output_text.logprobs"
Includable: TypeAlias = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
"""The second asks that reasoning can be sent back without a store. Ours can, as plain text."""

HANDED_ON = (
    "model",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "user",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "ignore_eos",
    "stop",
    "stop_token_ids",
    "bad_words",
    "allowed_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "truncate_prompt_tokens",
    "chat_template_kwargs",
    "safety_identifier",
    "prompt_cache_key",
    "priority",
    "cache_salt",
    "cache_control",
    "include_timings",
)
"""Fields of equal names and meanings."""

RENAMED = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}
"""The chat's name of a field > ours."""


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    type: Literal["json_object"]


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    name: str
    schema_: JsonObject = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None

    def to_chat(self) -> dict[str, Any]:
        given = {
            "name": self.name,
            "schema": self.schema_,
            "description": self.description,
            "strict": self.strict,
        }
        named = {key: value for key, value in given.items() if value is not None}
        return {"type": "json_schema", "json_schema": named}


Format = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class TextOptions(Strict):
    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Strict):
    effort: str | None = None
    summary: None = None
    generate_summary: None = None


class FunctionTool(Strict):
    type: Literal["function"]
    name: str
    parameters: JsonObject | None = None
    description: str | None = None
    strict: bool | None = None

    def to_chat(self) -> dict[str, Any]:
        given = {
            "name": self.name,
            "parameters": self.parameters,
            "description": self.description,
            "strict": self.strict,
        }
        named = {key: value for key, value in given.items() if value is not None}
        return {"type": "function", "function": named}


class NamedFunction(Strict):
    type: Literal["function"]
    name: str


class ResponsesStreamOptions(Strict):
    include_obfuscation: Off | None = None


class ResponsesBody(Strict):
    """POST /v1/responses."""

    model: str
    input: Input
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Listed[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    """Of built-in tools, of which there are none."""
    include: Listed[Includable] | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    metadata: Named[str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    """Prefixes are found without it."""
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    prompt_cache_retention: Literal["in-memory", "in_memory"] | None = None
    prompt_cache_options: None = None
    moderation: None = None
    context_management: None = None
    background_options: None = None
    access_programs: None = None
    image: None = None

    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Named[float] | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | Listed[str] | None = None
    stop_token_ids: Listed[int] | None = None
    bad_words: Listed[str] | None = None
    allowed_token_ids: Listed[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    chat_template_kwargs: JsonObject | None = None
    priority: int | None = None
    cache_salt: str | None = None
    cache_control: CacheControl | None = None
    include_timings: bool | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def shows_logprobs(self) -> bool:
        return self.top_logprobs is not None or SHOWS_LOGPROBS in (self.include or ())

    def conversation_of(self) -> Conversation:
        return Conversation(self.instructions, self.input)

    def spec(self, conversation: Conversation) -> RequestSpec:
        """Raises BadRequestError that names a field of ours."""
        chat = self.to_chat(conversation)
        try:
            return chat.specs()[0]
        except BadRequestError as error:
            error.param = own_param(error.param, conversation)
            raise

    def to_chat(self, conversation: Conversation) -> ChatBody:
        """The same request as a chat. Raises BadRequestError that names a field of ours."""
        self._refuse_what_needs_a_store()
        self._check_metadata()
        fields = {name: getattr(self, name) for name in HANDED_ON}
        fields["messages"] = conversation.messages
        fields["max_completion_tokens"] = self.max_output_tokens
        if self.shows_logprobs:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        fields |= self._text_and_reasoning() | self._tools()
        given = {name: value for name, value in fields.items() if value is not None}
        try:
            return ChatBody.model_validate(given)
        except ValidationError as error:
            raise _refused_by_chat(error, conversation) from None

    def _text_and_reasoning(self) -> dict[str, Any]:
        text, fields = self.text or TextOptions(), {}
        match text.format:
            case JsonObjectFormat():
                fields["response_format"] = {"type": "json_object"}
            case JsonSchemaFormat() as schema:
                fields["response_format"] = schema.to_chat()
        effort = None if self.reasoning is None else self.reasoning.effort
        return fields | {"verbosity": text.verbosity, "reasoning_effort": effort}

    def _tools(self) -> dict[str, Any]:
        choice = self.tool_choice
        if isinstance(choice, NamedFunction):
            return {
                "tools": self._chat_tools(),
                "tool_choice": {"type": "function", "function": {"name": choice.name}},
            }
        return {"tools": self._chat_tools(), "tool_choice": choice}

    def _chat_tools(self) -> list[dict[str, Any]] | None:
        return [tool.to_chat() for tool in self.tools] if self.tools else None

    def _refuse_what_needs_a_store(self) -> None:
        for name in ("store", "background", "previous_response_id", "conversation", "prompt"):
            if getattr(self, name) not in (None, False):
                raise BadRequestError(
                    f"'{name}' is not supported: answers are not stored here, so send the whole "
                    "conversation as input",
                    param=name,
                    code="unsupported_parameter",
                )

    def _check_metadata(self) -> None:
        metadata = self.metadata or {}
        long = any(len(k) > MAX_METADATA_KEY for k in metadata)
        if long or any(len(v) > MAX_METADATA_VALUE for v in metadata.values()):
            raise BadRequestError(
                f"metadata has keys over {MAX_METADATA_KEY} or values over {MAX_METADATA_VALUE} "
                "characters",
                param="metadata",
            )
        if len(metadata) > MAX_METADATA:
            raise BadRequestError(
                f"metadata has {len(metadata)} pairs, more than {MAX_METADATA}", param="metadata"
            )


def own_param(param: str | None, conversation: Conversation) -> str | None:
    """Our name of the field that a chat would call `param`."""
    if param is not None and param.partition(".")[0] == "messages":
        return conversation.place(param)
    return param if param is None else RENAMED.get(param, param)


def _refused_by_chat(error: ValidationError, conversation: Conversation) -> BadRequestError:
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = fault["loc"]
    depth = 3 if location and location[0] == "messages" else 1
    param = own_param(".".join(map(str, location[:depth])), conversation)
    if fault["type"] == "missing":
        return BadRequestError(
            f"'{param}' is required", param=param, code="missing_required_parameter"
        )
    if fault["type"] == "extra_forbidden":
        return BadRequestError(
            f"'{param}' is not supported", param=param, code="unsupported_parameter"
        )
    return BadRequestError(f"'{param}': {fault['msg']}", param=param, code="invalid_type")
