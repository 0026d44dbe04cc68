"""The shapes of answers, for /openapi.json: what clients may rely on, not all that is sent."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class ErrorDetail(BaseModel):
    """`code` is stable, one for each cause; `param` is the field that is to blame, if one is."""

    message: str
    type: str
    param: str | None
    code: str


class Error(BaseModel):
    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    cached_tokens: int
    pinned_tokens: int | None = None


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChatMessageAnswer(BaseModel):
    role: Literal["assistant"]
    content: str | None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessageAnswer
    logprobs: dict[str, Any] | None
    finish_reason: str


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatChunkChoice(BaseModel):
    index: int
    delta: dict[str, Any]
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class ChatChunk(BaseModel):
    """One `data:` of a stream. The last one but `[DONE]` may hold the usage alone."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class Completion(BaseModel):
    """An answer, and also one `data:` of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class InputTokensDetails(BaseModel):
    cached_tokens: int
    pinned_tokens: int | None = None


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(BaseModel):
    reason: str


class ResponseAnswer(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "failed", "cancelled", "in_progress"]
    model: str
    output: list[dict[str, Any]]
    error: dict[str, Any] | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None
    metadata: dict[str, str]


class ResponseEvent(BaseModel):
    """One `data:` of a stream; its `event:` is the type."""

    type: str = Field(pattern="^response\\.")
    sequence_number: int


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Tokenized(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(BaseModel):
    prompt: str


class Cancelled(BaseModel):
    id: str
    object: Literal["request"]
    status: Literal["cancelled"]


class Version(BaseModel):
    version: str


class Status(BaseModel):
    status: str


class File(BaseModel):
    id: str = Field(pattern="^file-")
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FileList(BaseModel):
    object: Literal["list"]
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchFault(BaseModel):
    """`line` counts from 1; none where no line is to blame."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchFaults(BaseModel):
    object: Literal["list"]
    data: list[BatchFault]


class RequestCounts(BaseModel):
    """`failed` are the lines of the error file."""

    total: int
    completed: int
    failed: int


class Batch(BaseModel):
    id: str = Field(pattern="^batch_")
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal[
        "validating",
        "failed",
        "in_progress",
        "finalizing",
        "completed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(BaseModel):
    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
