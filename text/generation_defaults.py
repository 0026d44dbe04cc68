"""How a model's authors would have it sampled: the numbers of generation_config.json.

They count where a client leaves a field open, as with vLLM's `--generation-config auto`. What else
is in such files (`do_sample`, beams, lengths) is about the library that they were written for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.errors import ConfigError
from text.fields import Fields


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """None where the model says nothing. `top_k` 0 is the whole vocabulary."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError for what no request could ask for either."""
        for name, low, high, above in (
            ("temperature", 0.0, 2.0, False),
            ("top_p", 0.0, 1.0, True),
            ("top_k", 0, 2**31 - 1, False),
            ("min_p", 0.0, 1.0, False),
            ("repetition_penalty", 0.0, 10.0, True),
        ):
            value = getattr(self, name)
            if value is not None and not (low <= value <= high and not (above and value == low)):
                raise ConfigError(
                    f"generation_config.json: {name} is {value}; model.generation_config=none "
                    "leaves its numbers out"
                )


def read_generation_defaults(config: Fields) -> dict[str, float]:
    """The numbers as they stand there, by the names of `GenerationDefaults`."""
    found = {name: config.values.get(name) for name in GenerationDefaults.__dataclass_fields__}
    numbers = {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    if "top_k" in numbers:
        numbers["top_k"] = max(0, int(numbers["top_k"]))  # some write -1 for all
    return numbers
