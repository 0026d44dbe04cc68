"""From a checked body to the answer that will come of it: for HTTP, and for a batch's lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

from router.door import Door
from router.generation import Generation
from router.http.chat import ChatAnswer
from router.http.completions import CompletionAnswer
from router.http.responses import ResponsesAnswer
from router.http.responses_schema import ResponsesBody
from router.http.schema import ChatBody, CompletionBody

Answer: TypeAlias = ChatAnswer | CompletionAnswer | ResponsesAnswer
Body: TypeAlias = ChatBody | CompletionBody | ResponsesBody
Begin: TypeAlias = Callable[[Door, Any, float, str], tuple[Answer, Generation]]


def _begin_chat(
    door: Door, body: ChatBody, received: float, client_id: str
) -> tuple[Answer, Generation]:
    generation = Generation(door, body.specs()[0], received, client_id=client_id)
    answer = ChatAnswer(body, generation, door.texts.tokenizer, int(time.time()))
    return answer, generation


def _begin_completion(
    door: Door, body: CompletionBody, received: float, client_id: str
) -> tuple[Answer, Generation]:
    generations = list[Generation]()
    for spec in body.specs():
        first = generations[0] if generations else None
        generations.append(Generation(door, spec, received, client_id=client_id, part_of=first))
    answer = CompletionAnswer(body, generations, door.texts.tokenizer, int(time.time()))
    return answer, generations[0]


def _begin_response(
    door: Door, body: ResponsesBody, received: float, client_id: str
) -> tuple[Answer, Generation]:
    conversation = body.conversation_of()
    spec = body.spec(conversation)
    generation = Generation(door, spec, received, client_id=client_id)
    answer = ResponsesAnswer(body, conversation, generation, door.texts.tokenizer, int(time.time()))
    return answer, generation


GENERATES: dict[str, tuple[type[Body], Begin]] = {
    "/v1/chat/completions": (ChatBody, _begin_chat),
    "/v1/completions": (CompletionBody, _begin_completion),
    "/v1/responses": (ResponsesBody, _begin_response),
}
"""Paths that bring text > what is asked there, and how its answer begins. The generation is the
first of the answer's prompts; nothing happens before the answer is read."""
