"""How a request's choices are read: where their thoughts begin, and who tells them as messages."""

from __future__ import annotations

from router.identifiers import new_request_id
from router.message.reader import MessageReader
from router.message.thoughts import Thinking, ThoughtSplitter, thinking_after
from router.request_spec import ChatPrompt, RequestSpec
from router.texts import Texts


def thinking_of(spec: RequestSpec, texts: Texts, token_ids: tuple[int, ...]) -> Thinking:
    """Whether an answer to this prompt, which is `token_ids`, begins with thoughts."""
    prompt = spec.prompt
    if not isinstance(prompt, ChatPrompt) or not texts.dialect.thinks:
        return Thinking.OVER
    continued = None
    if prompt.continue_final_message:
        continued = str(prompt.messages[-1].get("content", ""))
    return thinking_after(texts.tail(token_ids), continued)


def reader_of(spec: RequestSpec, texts: Texts, token_ids: tuple[int, ...]) -> MessageReader | None:
    """Reads one choice of a chat as a message; None where its text is all there is to it."""
    dialect, tooling = texts.dialect, spec.tooling
    if not isinstance(spec.prompt, ChatPrompt):
        return None
    splitter = ThoughtSplitter(thinking_of(spec, texts, token_ids)) if dialect.thinks else None
    if tooling is None or dialect.tools is None:
        return None if splitter is None else MessageReader(splitter, None, new_request_id)
    parser = dialect.tools.parser(tooling.names)
    new_id = dialect.tools.new_id
    return MessageReader(splitter, parser, new_id, parallel=tooling.parallel)
