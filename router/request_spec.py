"""What a client asks for, whichever protocol it spoke, and which values are allowed.

HTTP and gRPC both end here, so that every limit has one source and one message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from core.errors import BadRequestError

MAX_MESSAGES = 4096
MAX_CHOICES = 128
MAX_LOGPROBS = 20
"""OpenAI's limit for `top_logprobs`."""
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
"""Characters of one stop string; longer ones would hold back that much text."""
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1024
MAX_SALT_LENGTH = 256
MAX_PRIORITY = 100
"""Either way, within the class of the client's key: nobody asks himself past another class."""
SEED_RANGE = 2**63
ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template."""

    messages: tuple[Mapping[str, object], ...]

    def __post_init__(self) -> None:
        """Raises BadRequestError for more messages than any prompt could hold."""
        _at_most("messages", self.messages, MAX_MESSAGES, "entries")


def chat_message(role: str, content: str, name: str | None = None) -> dict[str, object]:
    """A message as templates know it. Raises BadRequestError for a role that they don't."""
    if role not in ROLES:
        raise BadRequestError(
            f"the role '{role[:32]}' is none of {', '.join(ROLES)}", param="messages"
        )
    # OpenAI's newer name for the same thing; templates were trained on the older.
    message: dict[str, object] = {
        "role": "system" if role == "developer" else role,
        "content": content,
    }
    return message if name is None else message | {"name": name}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """One prompt and how to go on from it. None means that the client left it open."""

    model: str
    prompt: ChatPrompt | str | tuple[int, ...]
    prompt_param: Literal["messages", "prompt"] = "prompt"
    """The field that faults of the prompt are reported on."""
    n: int = 1
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    logprobs_param: Literal["logprobs", "top_logprobs"] = "logprobs"
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    timeout_s: float | None = None
    """The client's own deadline; None: the router's."""

    def __post_init__(self) -> None:
        """Raises BadRequestError that names the first offending field and value."""
        _between("n", self.n, 1, MAX_CHOICES)
        if self.max_tokens is not None:
            _between("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _between("temperature", self.temperature, 0.0, 2.0)
        _between("top_k", self.top_k, 0, 2**31 - 1)
        _between("top_p", self.top_p, 0.0, 1.0, above=True)
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _between("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _between("repetition_penalty", self.repetition_penalty, 0.0, 10.0, above=True)
        if self.logprobs is not None:
            _between(self.logprobs_param, self.logprobs, 0, MAX_LOGPROBS)
        if self.seed is not None:
            _between("seed", self.seed, -SEED_RANGE, SEED_RANGE - 1)
        _between("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        self._check_min_tokens()
        self._check_lists()

    def _check_min_tokens(self) -> None:
        _between("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise BadRequestError(
                f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}",
                param="min_tokens",
            )

    def _check_lists(self) -> None:
        _at_most("stop", self.stop, MAX_STOP_STRINGS, "strings")
        for text in self.stop:
            _at_most("stop", text, MAX_STOP_LENGTH, "characters")
            if not text:
                raise BadRequestError("stop must not contain an empty string", param="stop")
        _at_most("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS, "token ids")
        _at_most("cache_salt", self.cache_salt, MAX_SALT_LENGTH, "characters")
        _at_most("logit_bias", tuple(self.logit_bias), MAX_LOGIT_BIAS, "token ids")
        for value in self.logit_bias.values():
            _between("logit_bias", value, -100.0, 100.0)


def _between(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    """`above`: the lower limit itself is not allowed. NaN and infinities are never between."""
    if low <= value <= high and not (above and value == low):
        return
    lower = f"above {_shown(low)}" if above else f"at least {_shown(low)}"
    raise BadRequestError(
        f"{name} is {_shown(value)}, but must be {lower} and at most {_shown(high)}", param=name
    )


def _shown(value: float) -> str:
    if isinstance(value, int):
        return str(value) if abs(value) < 2**64 else "far too large"
    return f"{value:g}"


def _at_most(name: str, items: Sequence[object], limit: int, what: str) -> None:
    if len(items) > limit:
        raise BadRequestError(f"{name} has {len(items)} {what}, more than {limit}", param=name)
