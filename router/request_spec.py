"""What a client asks for, whichever protocol it spoke, and which values are allowed.

HTTP and gRPC both end here, so that every limit has one source and one message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from core.errors import BadRequestError
from router.cache_control import MAX_BREAKPOINTS, Breakpoint
from router.structure.output_format import OutputFormat
from router.tools.tooling import Tooling

MAX_MESSAGES = 4096
MAX_CHOICES = 128
MAX_LOGPROBS = 20
"""OpenAI's limit for `top_logprobs`."""
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
"""Characters of one stop string; longer ones would hold back that much text."""
MAX_STOP_TOKEN_IDS = 64
MAX_BEAMS = 32
"""Each is a request of its own, of one token, at every step."""
MAX_BAD_WORDS = 256
MAX_BAD_WORD_LENGTH = 128
"""Characters; with so many words, a few milliseconds of tokenising."""
MAX_TEMPLATE_LENGTH = 64 * 1024
"""Characters of a client's own chat template; models' own have a few thousand."""
MAX_LOGIT_BIAS = 1024
MAX_SALT_LENGTH = 256
MAX_USER_LENGTH = 512
"""It is remembered with the last requests, and stands in their lines of the log."""
MAX_PRIORITY = 100
"""Either way, within the class of the client's key: nobody asks himself past another class."""
SEED_RANGE = 2**63
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """Messages, and how they become a text."""

    messages: tuple[Mapping[str, object], ...]
    tools: tuple[Mapping[str, object], ...] = ()
    """What the model is told of."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template: str | None = None
    """The client's own; None: the model's."""
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    """Further variables of the template."""
    breakpoints: tuple[Breakpoint, ...] = ()
    """What the client wants to stay cached, in order of place."""

    def __post_init__(self) -> None:
        """Raises BadRequestError for more messages than any prompt could hold."""
        _at_most("messages", self.messages, MAX_MESSAGES, "entries")
        _at_most("chat_template", self.template or "", MAX_TEMPLATE_LENGTH, "characters")


def beam_spec(
    wanted: bool | None, length_penalty: float | None, early_stopping: bool | None
) -> BeamSpec | None:
    """How to search, if the client wants it. Raises BadRequestError for rules without a search."""
    if wanted:
        return BeamSpec(1.0 if length_penalty is None else length_penalty, bool(early_stopping))
    for name, given in (
        ("length_penalty", length_penalty not in (None, 1.0)),
        ("early_stopping", early_stopping),
    ):
        if given:
            raise BadRequestError(f"{name} needs use_beam_search", param=name)
    return None


def exclusive_endings() -> BadRequestError:
    """Both were asked for, in so many words."""
    return BadRequestError(
        "continue_final_message and add_generation_prompt exclude each other",
        param="continue_final_message",
    )


def chat_message(
    role: str,
    content: str,
    name: str | None = None,
    *,
    tool_calls: Sequence[Mapping[str, object]] = (),
    tool_call_id: str | None = None,
    thoughts: str | None = None,
) -> dict[str, object]:
    """A message as templates know it.

    Raises BadRequestError for a role that they don't, and for calls and results of other roles.
    """
    if role not in ROLES:
        raise BadRequestError(
            f"the role '{role[:32]}' is none of {', '.join(ROLES)}", param="messages"
        )
    if tool_calls and role != "assistant":
        raise BadRequestError(f"a message of the role {role} has tool_calls", param="messages")
    if (tool_call_id is None) == (role == "tool"):
        verb = "needs" if role == "tool" else "has"
        raise BadRequestError(
            f"a message of the role {role} {verb} a tool_call_id", param="messages"
        )
    # OpenAI's newer name for the same thing; templates were trained on the older.
    message: dict[str, object] = {
        "role": "system" if role == "developer" else role,
        "content": content,
    }
    further = {
        "name": name,
        "tool_calls": list(tool_calls) or None,
        "tool_call_id": tool_call_id,
        "reasoning_content": thoughts,
    }
    return message | {key: value for key, value in further.items() if value is not None}


@dataclass(frozen=True, slots=True)
class BeamSpec:
    """A search for the likeliest answers, `num_choices` beams wide, instead of samples."""

    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        """Raises BadRequestError."""
        _between("length_penalty", self.length_penalty, -10.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """One prompt and how to go on from it. None means that the client left it open."""

    model: str
    prompt: ChatPrompt | str | tuple[int, ...]
    prompt_param: Literal["messages", "prompt"] = "prompt"
    """The field that faults of the prompt are reported on."""
    n: int = 1
    best_of: int | None = None
    """So many are generated; the `n` of the highest mean log-probability are told."""
    beams: BeamSpec | None = None
    max_tokens: int | None = None
    """0: only the prompt is told again, with `echo`."""
    default_max_tokens: int | None = None
    """Where `max_tokens` is None: so many, if they fit; None: what fits."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    logprobs_param: Literal["logprobs", "top_logprobs"] = "logprobs"
    prompt_logprobs: int | None = None
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    """Of a longer prompt, only so many last tokens count; -1: as many as fit."""
    add_special_tokens: bool | None = None
    """None: for plain texts yes, for rendered chats no, since templates write them."""
    echo: bool = False
    """The prompt's text (of a chat: that of a last message by the assistant) comes first."""
    priority: int = 0
    cache_salt: str = ""
    cache_ttl_s: float | None = None
    """All of the prompt is to stay cached for so long, beside what its breakpoints say."""
    tenant: str = ""
    tenant_param: Literal["user", "safety_identifier"] = "user"
    output_format: OutputFormat | None = None
    tooling: Tooling | None = None
    timeout_s: float | None = None
    """The client's own deadline; None: the router's."""

    @property
    def num_choices(self) -> int:
        """How many are generated."""
        return self.n if self.best_of is None else self.best_of

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        return self.prompt.breakpoints if isinstance(self.prompt, ChatPrompt) else ()

    @property
    def wants_pins(self) -> bool:
        """Whether anything of the prompt is to stay cached."""
        return self.cache_ttl_s is not None or bool(self.breakpoints)

    def __post_init__(self) -> None:
        """Raises BadRequestError that names the first offending field and value."""
        self._check_counts()
        if self.logprobs is not None:
            _between(self.logprobs_param, self.logprobs, 0, MAX_LOGPROBS)
        for name, low, high, above in (
            ("temperature", 0.0, 2.0, False),
            ("top_k", 0, 2**31 - 1, False),
            ("top_p", 0.0, 1.0, True),
            ("min_p", 0.0, 1.0, False),
            ("presence_penalty", -2.0, 2.0, False),
            ("frequency_penalty", -2.0, 2.0, False),
            ("repetition_penalty", 0.0, 10.0, True),
            ("prompt_logprobs", 0, MAX_LOGPROBS, False),
            ("seed", -SEED_RANGE, SEED_RANGE - 1, False),
            ("priority", -MAX_PRIORITY, MAX_PRIORITY, False),
        ):
            value = getattr(self, name)
            if value is not None:
                _between(name, value, low, high, above=above)
        self._check_min_tokens()
        self._check_lists()
        if self.beams is not None:
            self._check_beams()

    def _check_counts(self) -> None:
        _between("n", self.n, 1, MAX_CHOICES)
        if self.best_of is not None:
            _between("best_of", self.best_of, self.n, MAX_CHOICES)
        if self.max_tokens is not None:
            _between("max_tokens", self.max_tokens, 0 if self.echo else 1, 2**31 - 1)
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens != -1:
            _between("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, 2**31 - 1)

    def _check_beams(self) -> None:
        """Nothing is sampled and only end tokens end a beam, so that little else has a meaning."""
        _between("n" if self.best_of is None else "best_of", self.num_choices, 1, MAX_BEAMS)
        neutral: dict[str, tuple[object, ...]] = {
            "temperature": (None, 0.0, 1.0),
            "top_p": (None, 1.0),
            "top_k": (None, 0),
            "min_p": (None, 0.0),
            "presence_penalty": (0.0,),
            "frequency_penalty": (0.0,),
            "repetition_penalty": (None, 1.0),
            "logit_bias": ({},),
            "bad_words": ((),),
            "allowed_token_ids": (None,),
            "min_tokens": (0,),
            "stop": ((),),
            "stop_token_ids": ((),),
        }
        for name, values in neutral.items():
            if getattr(self, name) not in values:
                raise BadRequestError(f"{name} has no meaning with use_beam_search", param=name)
        if self.output_format is not None:
            param = self.output_format.param
            raise BadRequestError(f"{param} can't be followed by a beam search", param=param)
        if self.tooling is not None:
            raise BadRequestError("tools can't be called by a beam search", param="tools")

    def _check_min_tokens(self) -> None:
        _between("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens and self.min_tokens > self.max_tokens:
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
        _at_most("bad_words", self.bad_words, MAX_BAD_WORDS, "strings")
        for word in self.bad_words:
            _at_most("bad_words", word, MAX_BAD_WORD_LENGTH, "characters")
            if not word.strip():
                raise BadRequestError("bad_words must not contain a blank", param="bad_words")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise BadRequestError("allowed_token_ids is empty", param="allowed_token_ids")
        _at_most("cache_salt", self.cache_salt, MAX_SALT_LENGTH, "characters")
        num_places = len(self.breakpoints) + (self.cache_ttl_s is not None)
        if num_places > MAX_BREAKPOINTS:
            raise BadRequestError(
                f"cache_control stands in {num_places} places, more than {MAX_BREAKPOINTS}",
                param="cache_control",
            )
        _at_most(self.tenant_param, self.tenant, MAX_USER_LENGTH, "characters")
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
