"""What clients ask, and when they leave: a mix that follows from a seed (pure).

A run asks the same few dozen questions again and again, since each needs its undisturbed answer.
Most come with one of a few cache salts: so many that workers have forgotten most of them, and their
KV is computed and moved again; so few that what a router remembers doesn't grow with the run.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_SHARE_LEAVING = 0.15
_SHARE_UNSALTED = 0.15
_NUM_SALTS = 12
_LEAVES_AFTER_S = (0.003, 2.0)
_WORDS = ("night", "train", "late", "nobody", "platform", "light", "read", "by")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long prompts and answers are, and of which token ids prompts consist."""

    first_token_id: int
    last_token_id: int
    max_prompt: int = 400
    max_output: int = 160


@dataclass(frozen=True, slots=True)
class Ask:
    """One question. `body` lacks only the salt."""

    name: str
    path: str
    body: Mapping[str, object] = field(repr=False)

    @property
    def streams(self) -> bool:
        return self.body.get("stream") is True

    def payload(self, host: str, salt: str) -> bytes:
        """The HTTP request as bytes."""
        body = json.dumps({**self.body, **({"cache_salt": salt} if salt else {})}).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: tandem-bench\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@dataclass(frozen=True, slots=True)
class Visit:
    """One client with one ask."""

    number: int
    ask: Ask
    salt: str
    leaves_after_s: float | None = None
    """The client hangs up then, if it has no answer yet."""


def catalogue(model: str, sizes: Sizes, *, seed: int, count: int) -> tuple[Ask, ...]:
    """`count` asks: of both APIs, streamed and whole, greedy and sampled, one choice or two."""
    rng = random.Random(f"asks/{seed}")
    return tuple(_ask(number, model, sizes, rng) for number in range(count))


def visits(asks: Sequence[Ask], *, seed: int) -> Iterator[Visit]:
    """Clients without end."""
    rng = random.Random(f"visits/{seed}")
    number = 0
    while True:
        for ask in rng.sample(asks, len(asks)):
            salt = "" if rng.random() < _SHARE_UNSALTED else f"salt {rng.randrange(_NUM_SALTS)}"
            # Log-uniform: as many leave while they wait or prefill as while they decode.
            leaves = math.exp(rng.uniform(*map(math.log, _LEAVES_AFTER_S)))
            yield Visit(number, ask, salt, leaves if rng.random() < _SHARE_LEAVING else None)
            number += 1


def _ask(number: int, model: str, sizes: Sizes, rng: random.Random) -> Ask:
    n = rng.choice((1, 1, 2))
    stream = rng.random() < 0.7
    # Every third ends where the model wants, the others run to their length.
    body: dict[str, object] = {
        "model": model,
        "n": n,
        "max_tokens": round(sizes.max_output ** rng.uniform(0.3, 1.0)),
        "stream": stream,
        "ignore_eos": rng.random() < 0.67,
    }
    sampled = rng.random() < 0.5
    body |= {"temperature": 0.9, "seed": number, "top_p": 0.95} if sampled else {"temperature": 0.0}
    if stream:
        body["stream_options"] = {"include_usage": True}
    prompt_len = round(sizes.max_prompt ** rng.uniform(0.1, 1.0))
    logprobs = rng.random() < 0.75
    kind = f"{'stream' if stream else 'plain'} n={n} {'sampled' if sampled else 'greedy'}"
    if rng.random() < 0.25:
        words = " ".join(rng.choice(_WORDS) for _ in range(1 + prompt_len // 6))
        body["messages"] = [{"role": "user", "content": words}]
        body |= {"logprobs": True, "top_logprobs": 2} if logprobs else {}
        return Ask(f"#{number} chat {kind}", "/v1/chat/completions", body)
    ids = range(sizes.first_token_id, sizes.last_token_id + 1)
    body["prompt"] = [rng.choice(ids) for _ in range(prompt_len)]
    body |= {"logprobs": rng.choice((0, 2))} if logprobs else {}
    return Ask(f"#{number} {kind} {prompt_len} tokens", "/v1/completions", body)
