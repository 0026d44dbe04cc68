"""`cache_control` in a body: of the whole prompt, of a message, or of a part of one."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator

from router.cache_control import bad_cache_control, ttl_s_of
from router.http.strict import Strict


class CacheControl(Strict):
    """Anthropic's form."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _names_itself(
        cls, data: Any, handler: ModelWrapValidatorHandler[CacheControl]
    ) -> CacheControl:
        """A content is a text or parts: a fault of a part would be told as one of the content."""
        try:
            return handler(data)
        except ValidationError:
            raise bad_cache_control() from None

    @property
    def ttl_s(self) -> float:
        return ttl_s_of(self.ttl)
