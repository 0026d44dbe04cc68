"""What a tokenised request must keep to: the served model, its vocabulary, its length."""

from __future__ import annotations

from core.errors import BadRequestError, ContextLengthError, ModelNotFoundError
from router.request_spec import RequestSpec

MAX_SHOWN_CHARACTERS = 128
"""Of a client's own text in a message: gRPC refuses to carry long ones."""


def check_model(asked: str, served: str) -> None:
    """Raises ModelNotFoundError unless the asked model is the served one."""
    if asked != served:
        shown = asked[:MAX_SHOWN_CHARACTERS]
        raise ModelNotFoundError(f"the model '{shown}' is not served here", param="model")


def check_token_ids(spec: RequestSpec, prompt: tuple[int, ...], vocab_size: int) -> None:
    """Raises BadRequestError for an empty prompt and for ids outside the vocabulary."""
    if not prompt:
        raise BadRequestError("the prompt has no tokens", param=spec.prompt_param)
    for name, ids in (
        (spec.prompt_param, prompt),
        ("stop_token_ids", spec.stop_token_ids),
        ("logit_bias", tuple(spec.logit_bias)),
        ("allowed_token_ids", spec.allowed_token_ids or ()),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            raise BadRequestError(
                f"{name} holds a token id outside 0 to {vocab_size - 1}", param=name
            )


def resolve_max_tokens(spec: RequestSpec, num_prompt_tokens: int, max_model_len: int) -> int:
    """The output limit of each choice: the client's, or what the model has room for; at least 1.

    Raises ContextLengthError when prompt and output together don't fit, BadRequestError when
    `min_tokens` doesn't.
    """
    room = max_model_len - num_prompt_tokens
    wanted = spec.max_tokens or 1
    if wanted > room:
        asked = f" and max_tokens {spec.max_tokens}" if spec.max_tokens is not None else ""
        raise ContextLengthError(
            f"the model's limit is {max_model_len} tokens; the prompt has "
            f"{num_prompt_tokens}{asked}",
            param=spec.prompt_param,
        )
    max_tokens = wanted
    if spec.max_tokens is None:
        default = spec.default_max_tokens
        max_tokens = room if default is None else min(room, max(default, spec.min_tokens))
    if spec.min_tokens > max_tokens:
        raise BadRequestError(
            f"min_tokens is {spec.min_tokens}, but only {max_tokens} fit", param="min_tokens"
        )
    return max_tokens


def truncated(spec: RequestSpec, prompt: tuple[int, ...], max_model_len: int) -> tuple[int, ...]:
    """The prompt's last tokens, if the client wants no more of them."""
    most = spec.truncate_prompt_tokens
    if most is None:
        return prompt
    if most == -1:
        most = max(1, max_model_len - (spec.max_tokens or 1))
    return prompt[-most:]


def check_something_is_left(
    spec: RequestSpec,
    bad_words: tuple[tuple[int, ...], ...],
    end_token_ids: tuple[int, ...],
    vocab_size: int,
) -> None:
    """Raises BadRequestError where there might come a token that nothing may be sampled for."""
    unwanted = {word[-1] for word in bad_words}
    if spec.min_tokens:
        unwanted |= {*end_token_ids, *spec.stop_token_ids}
    if spec.allowed_token_ids is None:
        num_left = vocab_size - len(unwanted)
    else:
        num_left = len(set(spec.allowed_token_ids) - unwanted)
    if num_left <= 0:
        param = "bad_words" if spec.allowed_token_ids is None else "allowed_token_ids"
        raise BadRequestError(
            f"{param} leaves no token that is no end of a bad word and does not end the output "
            "before min_tokens",
            param=param,
        )
