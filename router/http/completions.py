"""Answers of /v1/completions, streamed and whole, from the same deltas.

The choices of prompt p are numbered p * n to p * n + n - 1.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from router.generation import Generation
from router.http.format import (
    DONE,
    TEXT,
    ChoiceFrames,
    RunningUsage,
    TextFrames,
    extension_of,
    frame,
    usage_of,
)
from router.http.logprobs import (
    CompletionLogprobs,
    TokenNames,
    joined_completion_logprobs,
    prompt_logprobs_json,
)
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
        self._names = TokenNames(tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._usage = RunningUsage(generations) if body.continuous_usage else None
        self._with_ids = bool(body.return_token_ids)
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._head: dict[str, object] = {
            "id": f"cmpl-{generations[0].request_id}",
            "object": "text_completion",
            "created": created,
            "model": body.model,
        }
        self._choice_frames = ChoiceFrames(self._head, include_usage=body.include_usage)
        self._text_frames = TextFrames(self._choice_frames, _text_choice)
        asked_for_more = body.continuous_usage or self._with_ids or body.logprobs is not None
        self._tells_only_text = not asked_for_more

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Events; a choice's first one leaves with its first token, even if that is no text yet."""
        begun: set[int] = set()
        async with aclosing(merged(self._generations)) as deltas:
            async for prompt, delta in deltas:
                index = self._index(prompt, delta)
                first = index not in begun
                if event := self._choice_frame(index, prompt, delta, first=first):
                    yield event
                begun.add(index)
        yield self._last_frames()

    async def whole(self) -> dict[str, object]:
        """The answer when every choice of every prompt has ended."""
        choices: dict[int, _WholeChoice] = {}
        async with aclosing(merged(self._generations)) as deltas:
            async for prompt, delta in deltas:
                index = self._index(prompt, delta)
                if index not in choices:
                    generation = self._generations[prompt]
                    others = self._prompt_fields(generation)
                    choices[index] = _WholeChoice([generation.echo_text], others)
                    choices[index].logprobs.append(self._echoed_logprobs(index, generation))
                choices[index].add(delta, self._logprobs_of(index, delta))
        answer = self._head | {
            "choices": [choices[index].to_json(index, self._with_ids) for index in sorted(choices)],
            "usage": usage_of(self._generations),
        }
        if self._body.include_timings:
            answer["tandem"] = extension_of(self._generations)
        return answer

    def _index(self, prompt: int, delta: Delta) -> int:
        return prompt * self._generations[prompt].spec.n + delta.choice

    def _prompt_fields(self, generation: Generation) -> dict[str, object]:
        """What of its prompt a choice tells, as in vLLM."""
        fields: dict[str, object] = {}
        if self._with_ids:
            fields["prompt_token_ids"] = list(generation.prompt_token_ids)
        logprobs = generation.prompt_logprobs
        if self._body.prompt_logprobs is not None and logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs_json(
                self._names, generation.prompt_token_ids, logprobs, self._body.prompt_logprobs
            )
        return fields

    def _echoed_logprobs(self, index: int, generation: Generation) -> dict[str, object] | None:
        """Of the prompt's tokens, where it is part of the choice's text."""
        logprobs = generation.prompt_logprobs
        if not self._body.echo or self._body.logprobs is None or logprobs is None:
            return None
        place = self._place(index)
        return place.of_prompt(generation.prompt_token_ids, logprobs, self._body.logprobs)

    def _logprobs_of(self, index: int, delta: Delta) -> dict[str, object] | None:
        has_place = bool(delta.logprobs) or delta.unspelled
        return self._place(index).of(delta) if has_place else None

    def _place(self, index: int) -> CompletionLogprobs:
        if index not in self._logprobs:
            skips = self._body.skip_special_tokens is not False
            self._logprobs[index] = CompletionLogprobs(
                self._tokenizer, self._names, skip_special_tokens=skips
            )
        return self._logprobs[index]

    def _choice_frame(self, index: int, prompt: int, delta: Delta, *, first: bool) -> bytes:
        """Empty where the client would learn nothing: text that is held back."""
        if self._tells_only_text and not first and delta.finish_reason is None:
            return self._text_frames.frame(index, delta.text) if delta.text else b""
        usage = self._usage.add(len(delta.token_ids)) if self._usage else None
        if not (first or delta.text or delta.logprobs or delta.finish_reason or self._with_ids):
            return b""
        choice: dict[str, object] = {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs_of(index, delta) if not first else None,
            "finish_reason": delta.finish_reason,
        }
        if self._with_ids:
            choice["token_ids"] = list(delta.token_ids)
        if first:
            generation = self._generations[prompt]
            echoed = self._echoed_logprobs(index, generation)
            parts = (echoed, self._logprobs_of(index, delta))
            choice |= self._prompt_fields(generation)
            choice["text"] = generation.echo_text + delta.text
            choice["logprobs"] = joined_completion_logprobs(parts)
        return self._choice_frames.frame(choice, usage=usage)

    def _last_frames(self) -> bytes:
        """What follows the last choice's end, as one piece."""
        if not (self._body.include_usage or self._body.include_timings):
            return DONE
        event = self._head | {"choices": [], "usage": usage_of(self._generations)}
        if self._body.include_timings:
            event["tandem"] = extension_of(self._generations)
        return frame(event) + DONE


def _text_choice(index: int) -> dict[str, object]:
    return {"index": index, "text": TEXT, "logprobs": None, "finish_reason": None}


@dataclass(slots=True)
class _WholeChoice:
    """One choice while its answer is collected."""

    text: list[str]
    others: dict[str, object]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, object] | None] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, delta: Delta, logprobs: dict[str, object] | None) -> None:
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs.append(logprobs)
        self.finish_reason = delta.finish_reason

    def to_json(self, index: int, with_ids: bool) -> dict[str, object]:
        return {
            "index": index,
            "text": "".join(self.text),
            "logprobs": joined_completion_logprobs(self.logprobs),
            "finish_reason": self.finish_reason,
            **({"token_ids": self.token_ids} if with_ids else {}),
            **self.others,
        }
