"""/tokenize and /detokenize in vLLM's shapes, also under /v1."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from core.errors import BadRequestError
from router.door import Door
from router.http.body import read_body
from router.http.conversation import ChatMessage, TemplateFields
from router.http.strict import Listed, Strict
from router.http.tool_fields import tooling_of
from router.request_spec import ChatPrompt
from router.tokenization import TokenizeSpec, detokenize, tokenize


class TokenizeBody(TemplateFields):
    """POST /tokenize: a `prompt`, or `messages` for the model's chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Listed[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def spec(self) -> TokenizeSpec:
        """Raises BadRequestError."""
        self._check_chat_only()
        return TokenizeSpec(
            model=self.model,
            prompt=self._prompt(),
            add_special_tokens=self.add_special_tokens,
        )

    def _prompt(self) -> ChatPrompt | str:
        if self.messages is None:
            if self.prompt is None:
                raise BadRequestError(
                    "'prompt' or 'messages' is required",
                    param="prompt",
                    code="missing_required_parameter",
                )
            return self.prompt
        if self.prompt is not None:
            raise BadRequestError("give either prompt or messages", param="messages")
        return self.chat_prompt(self.messages, tooling_of(self.tools, None, None))

    def _check_chat_only(self) -> None:
        for name in TemplateFields.model_fields:
            if self.messages is None and getattr(self, name) is not None:
                raise BadRequestError(f"{name} needs messages", param=name)


class DetokenizeBody(Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: Listed[int]


def add_tokenization(app: FastAPI, door: Door, *, max_body_bytes: int) -> None:
    @app.post("/tokenize")
    @app.post("/v1/tokenize")
    async def tokenize_text(request: Request) -> Response:
        body = await read_body(request, TokenizeBody, max_body_bytes=max_body_bytes)
        tokens = await tokenize(door, body.spec())
        answer = {
            "count": len(tokens.ids),
            "max_model_len": door.settings.max_model_len,
            "tokens": tokens.ids,
            "token_strs": tokens.strings if body.return_token_strs else None,
        }
        return JSONResponse(answer)

    @app.post("/detokenize")
    @app.post("/v1/detokenize")
    async def detokenize_ids(request: Request) -> Response:
        body = await read_body(request, DetokenizeBody, max_body_bytes=max_body_bytes)
        text = await detokenize(door, body.tokens, model=body.model)
        return JSONResponse({"prompt": text})
