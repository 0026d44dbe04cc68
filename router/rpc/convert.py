"""Public gRPC messages <-> what the door understands."""

from __future__ import annotations

from core.errors import BadRequestError
from core.request import TokenLogprobs
from protos import inference_pb2 as pb
from router.generation import Generation
from router.life.choice import Delta
from router.message.reader import MessageDelta
from router.request_spec import ChatPrompt, RequestSpec, chat_message
from router.rpc.convert_structure import (
    call_to_template,
    calls_to_wire,
    output_format_of,
    tooling_of,
)
from router.tools.tooling import Tooling


def spec_of(request: pb.CompleteRequest, *, timeout_s: float | None) -> RequestSpec:
    """The request with an absent field meaning its default. Raises BadRequestError."""
    sampling = request.sampling
    fields = {
        name: getattr(sampling, name)
        for name in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "logprobs",
            "seed",
            "min_tokens",
        )
        if sampling.HasField(name)
    }
    tooling = tooling_of(request)
    return RequestSpec(
        model=request.model,
        prompt=_prompt_of(request, tooling),
        prompt_param="messages" if request.HasField("chat") else "prompt",
        n=request.n if request.HasField("n") else 1,
        max_tokens=request.max_tokens if request.HasField("max_tokens") else None,
        logit_bias=dict(sampling.logit_bias),
        stop_token_ids=tuple(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        stop=tuple(request.stop),
        priority=request.priority,
        cache_salt=request.cache_salt,
        tenant=request.user,
        output_format=output_format_of(request),
        tooling=tooling,
        timeout_s=timeout_s,
        **fields,
    )


def _prompt_of(
    request: pb.CompleteRequest, tooling: Tooling | None
) -> ChatPrompt | str | tuple[int, ...]:
    match request.WhichOneof("input"):
        case "chat":
            messages = tuple(_message_of(m) for m in request.chat.messages)
            return ChatPrompt(messages, () if tooling is None else tooling.for_template())
        case "prompt":
            return request.prompt
        case "token_ids":
            return tuple(request.token_ids.ids)
        case _:
            raise BadRequestError("chat, prompt or token_ids is required", param="prompt")


def _message_of(message: pb.ChatMessage) -> dict[str, object]:
    return chat_message(
        message.role,
        message.content,
        message.name or None,
        tool_calls=[call_to_template(call) for call in message.tool_calls],
        tool_call_id=message.tool_call_id or None,
        thoughts=message.reasoning or None,
    )


def delta_to_wire(delta: Delta, message: MessageDelta | None = None) -> pb.CompleteEvent:
    """`message` is the delta as a message's, where there may be thoughts or calls."""
    told = message or MessageDelta(delta.text, finish_reason=delta.finish_reason)
    return pb.CompleteEvent(
        delta=pb.Delta(
            choice=delta.choice,
            text=told.content,
            token_ids=delta.token_ids,
            logprobs=[_logprobs_to_wire(p) for p in delta.logprobs],
            finish_reason=told.finish_reason or "",
            reasoning=told.thoughts,
            tool_calls=calls_to_wire(told.calls),
        )
    )


def _logprobs_to_wire(logprobs: TokenLogprobs) -> pb.TokenLogprobs:
    top = [pb.TokenLogprobs.Alternative(token_id=t, logprob=p) for t, p in logprobs.top]
    return pb.TokenLogprobs(logprob=logprobs.logprob, top=top)


def usage_to_wire(generation: Generation, *, include_timings: bool) -> pb.CompleteEvent:
    """The last message of a request that ended well."""
    usage = generation.usage
    return pb.CompleteEvent(
        usage=pb.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            request_id=generation.request_id,
            seed=generation.seed,
            timings=_timings_to_wire(generation) if include_timings else None,
        )
    )


def _timings_to_wire(generation: Generation) -> pb.Timings:
    timings, served_by = generation.timings, generation.served_by
    return pb.Timings(
        queue_s=timings.queue_s or 0.0,
        tokenize_s=timings.tokenize_s or 0.0,
        prefill_s=timings.prefill_s or 0.0,
        ttft_s=timings.ttft_s or 0.0,
        handoff_gap_s=timings.handoff_gap_s or 0.0,
        total_s=timings.total_s or 0.0,
        prefill_worker=served_by.prefill_worker,
        decode_worker=served_by.decode_worker,
        attempts=served_by.num_attempts,
    )
