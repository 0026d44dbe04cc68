"""One request and one answer for both public protocols, so that a case is told once.

Over HTTP it is streamed /v1/completions, which tells tokens by their names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import grpc.aio
from fakes_real_house import Front

from protos import inference_pb2 as pb
from router.http.logprobs import TokenNames

SAMPLING = ("temperature", "logit_bias", "logprobs", "seed", "min_tokens", "ignore_eos")
STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.DEADLINE_EXCEEDED: 408,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
}


@dataclass
class Choice:
    """What one choice got, put together."""

    text: str = ""
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Finish reasons: one, if all is well."""


@dataclass
class Outcome:
    """An answer, or the error instead of it; with both, the error came midway."""

    choices: list[Choice] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    client_id: str = ""
    num_events: int = 0
    status: int = 200
    code: str = ""
    param: str = ""
    error_after: bool = False


class Client(Protocol):
    """`fields` are those of /v1/completions."""

    async def ask(
        self, front: Front, prompt: Sequence[int], *, client_id: str = "", **fields: Any
    ) -> Outcome: ...


class OverHttp:
    async def ask(
        self, front: Front, prompt: Sequence[int], *, client_id: str = "", **fields: Any
    ) -> Outcome:
        body = {
            "model": front.model,
            "prompt": list(prompt),
            "logprobs": 0,
            "include_timings": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"x-request-id": client_id} if client_id else {}
        response = await front.http.post("/v1/completions", json=body | fields, headers=headers)
        outcome = Outcome(client_id=response.headers["x-request-id"])
        if response.status_code != 200:
            _take_error(outcome, response.json(), response.status_code)
            return outcome
        outcome.choices = [Choice() for _ in range(fields.get("n", 1))]
        lines = [line for line in response.text.splitlines() if line]
        for line in lines:
            if line.startswith("data: {"):
                _take_event(outcome, json.loads(line.removeprefix("data: ")))
        assert (lines[-1] == "data: [DONE]") is not outcome.error_after
        return outcome


def _take_event(outcome: Outcome, event: Mapping[str, Any]) -> None:
    outcome.num_events += 1
    if "error" in event:
        outcome.error_after = True
        _take_error(outcome, event, 500)
        return
    for told in event["choices"]:
        choice = outcome.choices[told["index"]]
        choice.text += told["text"]
        if told["logprobs"]:
            choice.tokens += told["logprobs"]["tokens"]
            choice.logprobs += told["logprobs"]["token_logprobs"]
        if told["finish_reason"]:
            choice.reasons.append(told["finish_reason"])
    if usage := event.get("usage"):
        outcome.prompt_tokens = usage["prompt_tokens"]
        outcome.completion_tokens = usage["completion_tokens"]
        outcome.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        outcome.timings = event["tandem"]


def _take_error(outcome: Outcome, answer: Mapping[str, Any], status: int) -> None:
    error = answer["error"]
    outcome.status, outcome.code, outcome.param = status, error["code"], error["param"] or ""


class OverGrpc:
    async def ask(
        self, front: Front, prompt: Sequence[int], *, client_id: str = "", **fields: Any
    ) -> Outcome:
        given = {"logprobs": 0} | fields
        sampling = {name: given.pop(name) for name in SAMPLING if name in given}
        bias = sampling.pop("logit_bias", {})
        sampling["logit_bias"] = {int(key): value for key, value in bias.items()}
        if "structured_outputs" in given:
            schema = json.dumps(given.pop("structured_outputs")["json"])
            given["output_format"] = pb.OutputFormat(json_schema=schema)
        request = pb.CompleteRequest(
            model=given.pop("model", front.model),
            token_ids=pb.TokenIds(ids=prompt),
            sampling=pb.Sampling(**sampling),
            include_timings=True,
            **given,
        )
        metadata = (("x-request-id", client_id),) if client_id else ()
        call = front.stub.Complete(request, metadata=metadata)
        outcome = Outcome()
        try:
            outcome.client_id = str(dict(await call.initial_metadata())["x-request-id"])
            async for event in call:
                self._take(outcome, event, fields.get("n", 1), front)
        except grpc.aio.AioRpcError as error:
            trailing = dict(error.trailing_metadata())
            outcome.status = STATUSES[error.code()]
            outcome.code = str(trailing["tandem-code"])
            outcome.param = str(trailing["tandem-param"])
            outcome.error_after = bool(outcome.choices)
        return outcome

    def _take(self, outcome: Outcome, event: pb.CompleteEvent, n: int, front: Front) -> None:
        outcome.num_events += 1
        if not outcome.choices:
            outcome.choices = [Choice() for _ in range(n)]
        if event.HasField("usage"):
            usage = event.usage
            outcome.prompt_tokens = usage.prompt_tokens
            outcome.completion_tokens = usage.completion_tokens
            outcome.cached_tokens = usage.cached_tokens
            timings = usage.timings
            outcome.timings = {f.name: getattr(timings, f.name) for f in timings.DESCRIPTOR.fields}
            return
        delta = event.delta
        choice = outcome.choices[delta.choice]
        choice.text += delta.text
        tokenizer = front.server.door.texts.tokenizer
        choice.tokens += map(TokenNames(tokenizer, as_ids=False).name, delta.token_ids)
        choice.logprobs += [entry.logprob for entry in delta.logprobs]
        if delta.finish_reason:
            choice.reasons.append(delta.finish_reason)


PROTOCOLS: dict[str, Client] = {"http": OverHttp(), "grpc": OverGrpc()}
