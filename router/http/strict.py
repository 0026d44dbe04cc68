"""The base of everything that a client's JSON is checked against, and its lists and objects.

A body has room for millions of faults, and each costs a hundred bytes and more while they are
collected: so whatever there may be many of is given up at its first one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    model_validator,
)

from router.inner_json import checked_json

MAX_FIELDS = 256
"""Of one object of known fields; none has a hundred."""

T = TypeVar("T")


class AtFirst(FailFast):
    """pydantic's own, with a hash, which parts of a union must have."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


Listed: TypeAlias = Annotated[list[T], AtFirst()]
Named: TypeAlias = Annotated[dict[str, T], AtFirst()]
JsonObject: TypeAlias = Annotated[dict[str, Any], AfterValidator(checked_json)]
"""Any object: a schema, or variables of a template."""


def _is_boolean(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError("it is not a boolean")
    return value


Off: TypeAlias = Annotated[Literal[False], BeforeValidator(_is_boolean)]
"""Of what isn't supported; 0.0, which equals False, is no boolean."""


class Strict(BaseModel):
    """Types are not converted, unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MAX_FIELDS:
            raise ValueError(f"it has {len(data)} fields, more than {MAX_FIELDS}")
        return data
