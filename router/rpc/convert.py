"""Public gRPC messages <-> what the door understands."""

from __future__ import annotations

from core.errors import BadRequestError
from core.request import TokenLogprobs
from protos import inference_pb2 as pb
from router.generation import Generation
from router.life.choice import Delta
from router.rendering import Rendering
from router.request_spec import ChatPrompt, RequestSpec, chat_message
from router.tokenization import TokenizeSpec


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
    return RequestSpec(
        model=request.model,
        prompt=_prompt_of(request),
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
        timeout_s=timeout_s,
        **fields,
    )


def tokenize_spec_of(request: pb.TokenizeRequest) -> TokenizeSpec:
    """Raises BadRequestError."""
    special, generation = None, True
    if request.HasField("add_special_tokens"):
        special = request.add_special_tokens
    if request.HasField("add_generation_prompt"):
        generation = request.add_generation_prompt
    return TokenizeSpec(
        model=request.model or None,
        prompt=_text_of(request),
        add_special_tokens=special,
        rendering=Rendering(
            add_generation_prompt=generation,
            continue_final_message=request.continue_final_message,
        ),
    )


def _text_of(request: pb.TokenizeRequest) -> ChatPrompt | str:
    match request.WhichOneof("input"):
        case "chat":
            return ChatPrompt(tuple(_message_of(m) for m in request.chat.messages))
        case "prompt":
            return request.prompt
        case _:
            raise BadRequestError("chat or prompt is required", param="prompt")


def _prompt_of(request: pb.CompleteRequest) -> ChatPrompt | str | tuple[int, ...]:
    match request.WhichOneof("input"):
        case "chat":
            return ChatPrompt(tuple(_message_of(m) for m in request.chat.messages))
        case "prompt":
            return request.prompt
        case "token_ids":
            return tuple(request.token_ids.ids)
        case _:
            raise BadRequestError("chat, prompt or token_ids is required", param="prompt")


def _message_of(message: pb.ChatMessage) -> dict[str, object]:
    return chat_message(message.role, message.content, message.name or None)


def delta_to_wire(delta: Delta) -> pb.CompleteEvent:
    return pb.CompleteEvent(
        delta=pb.Delta(
            choice=delta.choice,
            text=delta.text,
            token_ids=delta.token_ids,
            logprobs=[_logprobs_to_wire(p) for p in delta.logprobs],
            finish_reason=delta.finish_reason or "",
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
