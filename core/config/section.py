"""What sections are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


def absolute(path: str | None) -> str | None:
    """Of a file that processes with other working directories read too."""
    return None if path is None else str(Path(path).expanduser().absolute())


class Section(BaseModel):
    """Frozen; unknown keys are refused. A field's documentation is the text below it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
