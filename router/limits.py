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
    ):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            raise BadRequestError(
                f"{name} holds a token id outside 0 to {vocab_size - 1}", param=name
            )


def resolve_max_tokens(spec: RequestSpec, num_prompt_tokens: int, max_model_len: int) -> int:
    """The output limit of each choice: the client's, or what the model has room for.

    Raises ContextLengthError when prompt and output together don't fit, BadRequestError when
    `min_tokens` doesn't.
    """
    room = max_model_len - num_prompt_tokens
    wanted = 1 if spec.max_tokens is None else spec.max_tokens
    if wanted > room:
        asked = f" and max_tokens {spec.max_tokens}" if spec.max_tokens is not None else ""
        raise ContextLengthError(
            f"the model's limit is {max_model_len} tokens; the prompt has "
            f"{num_prompt_tokens}{asked}",
            param=spec.prompt_param,
        )
    max_tokens = room if spec.max_tokens is None else spec.max_tokens
    if spec.min_tokens > max_tokens:
        raise BadRequestError(
            f"min_tokens is {spec.min_tokens}, but only {max_tokens} fit", param="min_tokens"
        )
    return max_tokens
