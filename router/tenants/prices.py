"""What tokens cost: a table with a section for each model, in money for a million tokens.

["SmolLM2-135M-Instruct"]
input = 0.10
cached_input = 0.01
output = 0.40
pinned_hour = 0.05          # for a million tokens that stay pinned for an hour
batch_discount = 0.5        # batches pay half, but for what they pin
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import ConfigError

Amount = Annotated[float, Field(ge=0)]

SECONDS_PER_HOUR = 3600
NANOS_PER_TOKEN = 1_000
"""One unit of money for a million tokens, in billionths of it for one token."""


class Price(BaseModel):
    """One model's; nothing costs nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    input: Amount = 0.0
    cached_input: Amount | None = None
    """Of prompt tokens found in a prefix cache; unset: as `input`."""
    output: Amount = 0.0
    pinned_hour: Amount = 0.0
    batch_discount: Annotated[float, Field(ge=0, le=1)] = 0.5

    def cost_nanos(
        self,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        batch: bool,
        pinned_token_seconds: float = 0.0,
    ) -> int:
        """In billionths. `cached_tokens` are part of `prompt_tokens`."""
        cached = self.input if self.cached_input is None else self.cached_input
        money = (
            (prompt_tokens - cached_tokens) * self.input
            + cached_tokens * cached
            + output_tokens * self.output
        )
        share = 1 - self.batch_discount if batch else 1.0
        pinned = pinned_token_seconds / SECONDS_PER_HOUR * self.pinned_hour
        return round((money * share + pinned) * NANOS_PER_TOKEN)


def load_prices(file: str | None) -> Mapping[str, Price]:
    """The table by model; empty without a file. Raises ConfigError that names what is wrong."""
    if file is None:
        return {}
    try:
        sections = tomllib.loads(Path(file).read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"tenants.prices_file = {file}: {error}") from None
    try:
        return {model: Price.model_validate(section) for model, section in sections.items()}
    except ValidationError as error:
        raise ConfigError(f"tenants.prices_file = {file}: {error.errors()[0]['msg']}") from None
