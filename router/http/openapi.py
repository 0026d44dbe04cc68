"""The OpenAPI document of the HTTP API. Bodies are read by our own reader, so it is made here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from core.release import RELEASE
from router.http import answer_shapes as shapes
from router.http.batches import BatchBody
from router.http.refused import NO_MODEL_FOR
from router.http.responses_schema import ResponsesBody
from router.http.schema import NEUTRAL, ChatBody, CompletionBody
from router.http.tokenization import DetokenizeBody, TokenizeBody
from router.tenants.gatekeeper import OPEN

Schema = dict[str, Any]

READS_A_BODY = (400, 404, 408, 413, 415, 429)
GENERATES = (*READS_A_BODY, 499, 503)
ERRORS = {
    400: "The request can't succeed as it is; `param` names the field.",
    401: "No API key, or none that is good.",
    403: "The API key is good, but not for this.",
    404: "There is no such model, request or path.",
    408: "The request's deadline passed, or the body came too slowly.",
    409: "Several requests have this name, or what is named is not in the state for it.",
    413: "The body is too large.",
    415: "The body is no JSON.",
    416: "The file ends before the range begins.",
    429: "Everything is full; come back after `retry-after` seconds.",
    499: "The request was cancelled.",
    503: "Nobody can serve it now; `code` says why: no_worker, draining, worker_lost, ...",
}
RETRY = (429, 503)
KEYED = (401, 403, 503)
"""Of what asks for an API key, where the operator requires keys."""
METRICS = "text/plain; version=1.0.0"
FORM = "multipart/form-data"
_UPLOAD: Schema = {
    "type": "object",
    "required": ["file", "purpose"],
    "additionalProperties": False,
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": ["batch"]},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    summary: str
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    """None: plain text, or nothing but errors where there is no `answer` at all."""
    event: type[BaseModel] | None = None
    """The data of each server-sent event, if the body may ask for a stream."""
    errors: tuple[int, ...] = ()
    is_text: bool = False
    is_upload: bool = False
    is_bytes: bool = False
    query: tuple[tuple[str, Schema], ...] = ()
    """What may be asked behind the path."""


def _get(path: str, summary: str, answer: type[BaseModel], *errors: int) -> Operation:
    return Operation(method="get", path=path, summary=summary, answer=answer, errors=errors)


def _post(
    path: str,
    summary: str,
    body: type[BaseModel] | None,
    answer: type[BaseModel] | None,
    errors: tuple[int, ...],
    event: type[BaseModel] | None = None,
) -> Operation:
    return Operation(
        method="post",
        path=path,
        summary=summary,
        body=body,
        answer=answer,
        event=event,
        errors=errors,
    )


def operations() -> list[Operation]:
    """All that is public, in the order in which it is shown."""
    tokenize = _post(
        "/tokenize", "Token ids of a text or a chat", TokenizeBody, shapes.Tokenized, READS_A_BODY
    )
    detokenize = _post(
        "/detokenize", "Text of token ids", DetokenizeBody, shapes.Detokenized, READS_A_BODY
    )
    return [
        _post(
            "/v1/chat/completions",
            "The answer to a conversation",
            ChatBody,
            shapes.ChatCompletion,
            GENERATES,
            shapes.ChatChunk,
        ),
        _post(
            "/v1/completions",
            "The continuation of a text",
            CompletionBody,
            shapes.Completion,
            GENERATES,
            shapes.Completion,
        ),
        _post(
            "/v1/responses",
            "The answer to input items; nothing is stored",
            ResponsesBody,
            shapes.ResponseAnswer,
            GENERATES,
            shapes.ResponseEvent,
        ),
        _post(
            "/v1/requests/{request_id}/cancel",
            "Ends a running request, by its own id or the client's x-request-id",
            None,
            shapes.Cancelled,
            (404, 409),
        ),
        *_of_batches(),
        _get("/v1/models", "The served model", shapes.ModelList),
        _get("/v1/models/{name}", "One model", shapes.Model, 404),
        tokenize,
        detokenize,
        *(replace(operation, path=f"/v1{operation.path}") for operation in (tokenize, detokenize)),
        _get("/health", "Whether this process answers", shapes.Status),
        _get("/live", "Whether this process answers", shapes.Status),
        _get("/ready", "Whether a request would be served now", shapes.Status, 429, 503),
        _get("/version", "The release", shapes.Version),
        Operation(method="get", path="/metrics", summary="Prometheus' metrics", is_text=True),
        *(
            _post(
                path.replace(":path", ""),
                f"Refused: no model here makes {what}",
                None,
                None,
                (400, 404),
            )
            for path, what in NO_MODEL_FOR.items()
        ),
        *(
            Operation(
                method=method,
                path="/v1/responses/{response_id}",
                summary="Refused: answers are not stored",
                errors=(404,),
            )
            for method in ("get", "delete")
        ),
    ]


def _of_batches() -> list[Operation]:
    file, batch, limit = "/v1/files/{file_id}", "/v1/batches/{batch_id}", {"type": "integer"}
    files_query = (
        ("limit", limit | {"minimum": 1, "maximum": 10_000}),
        ("order", {"type": "string", "enum": ["asc", "desc"]}),
        ("purpose", {"type": "string"}),
        ("after", {"type": "string"}),
    )
    batches_query = (
        ("limit", limit | {"minimum": 1, "maximum": 100}),
        ("after", {"type": "string"}),
    )
    return [
        Operation(
            method="post",
            path="/v1/files",
            summary="Keeps a file of requests for a batch",
            answer=shapes.File,
            errors=READS_A_BODY,
            is_upload=True,
        ),
        replace(_get("/v1/files", "The key's files", shapes.FileList, 400, 404), query=files_query),
        _get(file, "One file", shapes.File, 404),
        Operation(
            method="delete",
            path=file,
            summary="Removes a file",
            answer=shapes.FileDeleted,
            errors=(404, 409),
        ),
        Operation(
            method="get",
            path=f"{file}/content",
            summary="A file's bytes",
            errors=(400, 404, 416),
            is_bytes=True,
        ),
        _post(
            "/v1/batches",
            "Answers a file of requests within 24 hours, in what other traffic leaves",
            BatchBody,
            shapes.Batch,
            READS_A_BODY,
        ),
        replace(
            _get("/v1/batches", "The key's batches", shapes.BatchList, 400, 404),
            query=batches_query,
        ),
        _get(batch, "One batch", shapes.Batch, 404),
        _post(f"{batch}/cancel", "Ends a batch", None, shapes.Batch, (404, 409)),
    ]


def openapi_document(model: str) -> dict[str, Any]:
    """The document of a house that serves `model`."""
    paths: dict[str, dict[str, Any]] = {}
    everything = operations()
    for operation in everything:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tandem",
            "version": RELEASE,
            "description": "OpenAI's API for a model of one's own, with vLLM's extensions.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(everything, model),
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "responses": _responses(operation),
    }
    if operation.path not in OPEN:
        described["security"] = [{}, {"apiKey": []}]
    if "{" in operation.path:
        name = operation.path.partition("{")[2].partition("}")[0]
        text = {"type": "string", "minLength": 1}
        described["parameters"] = [{"name": name, "in": "path", "required": True, "schema": text}]
    if operation.query:
        described["parameters"] = [
            {"name": name, "in": "query", "schema": schema} for name, schema in operation.query
        ]
    if operation.is_upload:
        described["requestBody"] = {"required": True, "content": {FORM: {"schema": _UPLOAD}}}
    if operation.body is not None:
        content = {"application/json": {"schema": _reference(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _operation_id(operation: Operation) -> str:
    words = "".join(c if c.isalnum() else " " for c in operation.path).split()
    return "_".join([operation.method, *words])


def _responses(operation: Operation) -> dict[str, Any]:
    responses = {}
    if operation.answer is not None:
        content: dict[str, Any] = {"application/json": {"schema": _reference(operation.answer)}}
        if operation.event is not None:
            content["text/event-stream"] = {
                "schema": {"type": "string"},
                "x-event-schema": _reference(operation.event),
            }
        responses["200"] = _response("The answer.", content)
    if operation.is_text:
        responses["200"] = _response("The samples.", {METRICS: {"schema": {"type": "string"}}})
    if operation.is_bytes:
        content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        responses["200"] = _response("The bytes.", content)
    keyed = () if operation.path in OPEN else KEYED
    for status in sorted({*operation.errors, *keyed}):
        content = {"application/json": {"schema": _reference(shapes.Error)}}
        responses[str(status)] = _response(ERRORS[status], content, retry=status in RETRY)
    return responses


def _response(description: str, content: dict[str, Any], *, retry: bool = False) -> dict[str, Any]:
    headers: dict[str, Any] = {
        "x-request-id": {
            "description": "The client's own, or ours",
            "required": True,
            "schema": {"type": "string"},
        }
    }
    if retry:
        headers["retry-after"] = {
            "description": "Seconds",
            "required": True,
            "schema": {"type": "integer", "minimum": 1},
        }
    return {"description": description, "headers": headers, "content": content}


def _reference(model: type[BaseModel]) -> Schema:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _schemas(everything: list[Operation], model: str) -> dict[str, Schema]:
    shown: dict[type[BaseModel], None] = {shapes.Error: None}
    for operation in everything:
        for kind in (operation.body, operation.answer, operation.event):
            if kind is not None:
                shown[kind] = None
    _, top = models_json_schema(
        [(kind, "validation") for kind in shown], ref_template="#/components/schemas/{model}"
    )
    schemas: dict[str, Schema] = top["$defs"]
    for kind in (ChatBody, CompletionBody):
        properties = schemas[kind.__name__]["properties"]
        for name, values in NEUTRAL.items():
            properties.setdefault(name, {"enum": list(values)})
    for operation in everything:
        if operation.body is not None and "model" in schemas[operation.body.__name__]["properties"]:
            _name_the_model(schemas[operation.body.__name__]["properties"]["model"], model)
    return schemas


def _name_the_model(schema: Schema, model: str) -> None:
    for option in (schema, *schema.get("anyOf", ())):
        if option.get("type") == "string":
            option["enum"] = [model]
