"""Answers of /v1/completions, streamed and whole, from the same deltas.

The choices of prompt p are numbered p * n to p * n + n - 1.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from router.generation import Generation
from router.http.format import DONE, ChoiceFrames, extension_of, frame, usage_of
from router.http.logprobs import CompletionLogprobs, joined_completion_logprobs
from router.http.schema import CompletionBody
from router.life.choice import Delta
from router.life.merged import merged
from text.tokenizer import Tokenizer


class CompletionAnswer:
    """One completion request's answer. Use either `frames` or `whole`, once."""

    def __init__(
        self,
        body: CompletionBody,
        generations: Sequence[Generation],
        tokenizer: Tokenizer,
        created: int,
    ) -> None:
        self._body = body
        self._generations = generations
        self._tokenizer = tokenizer
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._head: dict[str, object] = {
            "id": f"cmpl-{generations[0].request_id}",
            "object": "text_completion",
            "created": created,
            "model": body.model,
        }
        self._choice_frames = ChoiceFrames(self._head, include_usage=body.include_usage)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Events; a choice's first one leaves with its first token, even if that is no text yet."""
        begun: set[int] = set()
        async with aclosing(merged(self._generations)) as deltas:
            async for prompt, delta in deltas:
                index = self._index(prompt, delta)
                text = delta.text if index in begun else self._echo(prompt) + delta.text
                if text or delta.logprobs or delta.finish_reason or index not in begun:
                    yield self._choice_frame(index, text, delta)
                begun.add(index)
        if self._body.include_usage or self._body.include_timings:
            yield self._final_frame()
        yield DONE

    async def whole(self) -> dict[str, object]:
        """The answer when every choice of every prompt has ended."""
        choices: dict[int, _WholeChoice] = {}
        async with aclosing(merged(self._generations)) as deltas:
            async for prompt, delta in deltas:
                index = self._index(prompt, delta)
                if index not in choices:
                    choices[index] = _WholeChoice([self._echo(prompt)])
                choices[index].add(delta, self._logprobs_of(index, delta))
        answer = self._head | {
            "choices": [choices[index].to_json(index) for index in sorted(choices)],
            "usage": usage_of(self._generations),
        }
        if self._body.include_timings:
            answer["tandem"] = extension_of(self._generations)
        return answer

    def _index(self, prompt: int, delta: Delta) -> int:
        return prompt * self._generations[prompt].spec.n + delta.choice

    def _echo(self, prompt: int) -> str:
        """The prompt's own text, if it is to come first."""
        if not self._body.echo:
            return ""
        generation = self._generations[prompt]
        given = generation.spec.prompt
        if isinstance(given, str):
            return given
        return self._tokenizer.decode(generation.prompt_token_ids)

    def _logprobs_of(self, index: int, delta: Delta) -> dict[str, object] | None:
        if index not in self._logprobs:
            self._logprobs[index] = CompletionLogprobs(self._tokenizer)
        return self._logprobs[index].of(delta)

    def _choice_frame(self, index: int, text: str, delta: Delta) -> bytes:
        choice = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs_of(index, delta),
            "finish_reason": delta.finish_reason,
        }
        return self._choice_frames.frame(choice)

    def _final_frame(self) -> bytes:
        event = self._head | {"choices": [], "usage": usage_of(self._generations)}
        if self._body.include_timings:
            event["tandem"] = extension_of(self._generations)
        return frame(event)


@dataclass(slots=True)
class _WholeChoice:
    """One choice while its answer is collected."""

    text: list[str]
    logprobs: list[dict[str, object] | None] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, delta: Delta, logprobs: dict[str, object] | None) -> None:
        self.text.append(delta.text)
        self.logprobs.append(logprobs)
        self.finish_reason = delta.finish_reason

    def to_json(self, index: int) -> dict[str, object]:
        return {
            "index": index,
            "text": "".join(self.text),
            "logprobs": joined_completion_logprobs(self.logprobs),
            "finish_reason": self.finish_reason,
        }
