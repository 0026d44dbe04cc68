"""Public gRPC messages <-> what the door understands."""

from __future__ import annotations

from core.errors import BadRequestError
from core.request import TokenLogprobs
from protos import inference_pb2 as pb
from router.cache_control import Breakpoint, ttl_s_of
from router.generation import Generation
from router.inner_json import parsed_json
from router.life.choice import Delta
from router.message.reader import MessageDelta
from router.request_spec import (
    BeamSpec,
    ChatPrompt,
    RequestSpec,
    beam_spec,
    chat_message,
    exclusive_endings,
)
from router.rpc.convert_structure import (
    call_to_template,
    calls_to_wire,
    output_format_of,
    tooling_of,
)
from router.tokenization import TokenizeSpec
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
            "prompt_logprobs",
            "best_of",
            "seed",
            "min_tokens",
        )
        if sampling.HasField(name)
    }
    fields |= {
        name: getattr(request, name)
        for name in ("skip_special_tokens", "truncate_prompt_tokens", "add_special_tokens")
        if request.HasField(name)
    }
    tooling = tooling_of(request)
    return RequestSpec(
        model=request.model,
        prompt=_prompt_of(request, tooling),
        prompt_param="messages" if request.HasField("chat") else "prompt",
        n=request.n if request.HasField("n") else 1,
        max_tokens=request.max_tokens if request.HasField("max_tokens") else None,
        logit_bias=dict(sampling.logit_bias),
        beams=_beams_of(sampling),
        bad_words=tuple(sampling.bad_words),
        allowed_token_ids=tuple(sampling.allowed_token_ids) or None,
        stop_token_ids=tuple(sampling.stop_token_ids),
        include_stop_str_in_output=request.include_stop_str_in_output,
        echo=request.echo,
        ignore_eos=sampling.ignore_eos,
        stop=tuple(request.stop),
        priority=request.priority,
        cache_salt=request.cache_salt,
        cache_ttl_s=ttl_s_of(request.cache_control.ttl)
        if request.HasField("cache_control")
        else None,
        tenant=request.user,
        output_format=output_format_of(request),
        tooling=tooling,
        timeout_s=timeout_s,
        **fields,
    )


def tokenize_spec_of(request: pb.TokenizeRequest) -> TokenizeSpec:
    """Raises BadRequestError."""
    special = request.add_special_tokens if request.HasField("add_special_tokens") else None
    return TokenizeSpec(
        model=request.model or None, prompt=_text_of(request), add_special_tokens=special
    )


def _text_of(request: pb.TokenizeRequest) -> ChatPrompt | str:
    match request.WhichOneof("input"):
        case "chat":
            return _chat_prompt(request.chat, None)
        case "prompt":
            return request.prompt
        case _:
            raise BadRequestError("chat or prompt is required", param="prompt")


def _prompt_of(
    request: pb.CompleteRequest, tooling: Tooling | None
) -> ChatPrompt | str | tuple[int, ...]:
    match request.WhichOneof("input"):
        case "chat":
            return _chat_prompt(request.chat, tooling)
        case "prompt":
            return request.prompt
        case "token_ids":
            return tuple(request.token_ids.ids)
        case _:
            raise BadRequestError("chat, prompt or token_ids is required", param="prompt")


def _beams_of(sampling: pb.Sampling) -> BeamSpec | None:
    length_penalty = sampling.length_penalty if sampling.HasField("length_penalty") else None
    return beam_spec(sampling.use_beam_search, length_penalty, sampling.early_stopping)


def _chat_prompt(chat: pb.Chat, tooling: Tooling | None) -> ChatPrompt:
    adds_prompt = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else None
    if adds_prompt and chat.continue_final_message:
        raise exclusive_endings()
    return ChatPrompt(
        messages=tuple(_message_of(m) for m in chat.messages),
        tools=() if tooling is None else tooling.for_template(),
        add_generation_prompt=adds_prompt is not False,
        continue_final_message=chat.continue_final_message,
        template=chat.chat_template or None,
        template_kwargs=_json_object("chat_template_kwargs", chat.chat_template_kwargs),
        breakpoints=tuple(
            Breakpoint(index, None, ttl_s_of(message.cache_control.ttl))
            for index, message in enumerate(chat.messages)
            if message.HasField("cache_control")
        ),
    )


def _json_object(name: str, text: str) -> dict[str, object]:
    """Empty for an empty text. Raises BadRequestError."""
    try:
        value = parsed_json(text) if text else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BadRequestError(f"{name} is not a JSON object", param=name, code="invalid_type")
    return value


def _message_of(message: pb.ChatMessage) -> dict[str, object]:
    return chat_message(
        message.role,
        message.content,
        message.name or None,
        tool_calls=[call_to_template(call) for call in message.tool_calls],
        tool_call_id=message.tool_call_id or None,
        thoughts=message.reasoning or None,
    )


def prompt_to_wire(request: pb.CompleteRequest, generation: Generation) -> pb.CompleteEvent | None:
    """What the client asked for of its prompt, once the first delta is there."""
    logprobs = generation.prompt_logprobs
    if logprobs is None and not request.return_prompt_token_ids:
        return None
    token_ids = generation.prompt_token_ids if request.return_prompt_token_ids else ()
    known = [_logprobs_to_wire(p) for p in logprobs or () if p is not None]
    return pb.CompleteEvent(prompt=pb.Prompt(token_ids=token_ids, logprobs=known))


def delta_to_wire(
    delta: Delta, message: MessageDelta | None = None, before: str = ""
) -> pb.CompleteEvent:
    """`message` is the delta as a message's, where there may be thoughts or calls; `before` is text
    that comes before the delta's own."""
    told = message or MessageDelta(delta.text, finish_reason=delta.finish_reason)
    return pb.CompleteEvent(
        delta=pb.Delta(
            choice=delta.choice,
            text=before + told.content,
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
            pinned_tokens=usage.pinned_tokens,
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
